"""Write files that are either whole or absent; write and read settings as TOML, bit by bit the same."""

import datetime
import errno
import hashlib
import io
import os
import re
import secrets
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import tomli_w

from sihg.errors import InputError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
MAX_TEXT_BYTES = 2**28  # of a record, a table or a log; larger files are refused before they are read
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}", re.DOTALL)  # a file that is being written
MAX_TOML_BYTES = 2**22
_TOML_TYPES = (str, int, float, datetime.date, datetime.time)  # bool is an int, datetime a date


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file durably; a failure or a kill at any moment leaves the old file or none.

    Args:
        path: The file. Missing parent folders are made.
        data: The whole content.
    Returns:
        The path.
    Example:
        >>> write_bytes("new/a.bin", b"abc").read_bytes()
        b'abc'
    """
    with _replacing(Path(path)) as file:
        file.write(data)
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write a UTF-8 text file as `write_bytes` does, with line ends unchanged.

    Args:
        path: The file. Missing parent folders are made.
        text: The whole content.
    Returns:
        The path.
    Example:
        >>> write_text("a.txt", "eps = 8/255").read_text()
        'eps = 8/255'
    """
    return write_bytes(path, text.encode())


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` once it is complete and on the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        make_parents(path)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise InputError("cannot-write-file", path=path, reason=error.strerror or error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def temporary_of(name: str) -> str | None:
    """Return the name of the file whose writing was cut short and left a file of this name; None for other names."""
    found = _TEMPORARY.fullmatch(name)
    return None if found is None else found["name"]


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk; without this a power cut can undo a rename."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_parents(path: Path) -> None:
    """Make the missing folders above `path` durably."""
    if not path.parent.is_dir():
        make_parents(path.parent)
        path.parent.mkdir(exist_ok=True)  # raises FileExistsError if it is a file
        sync_folder(path.parent.parent)


def make_folder(path: Path) -> None:
    """Make a folder durably and check that files can be written there, before the work whose results it takes."""
    try:
        make_parents(path / "any")
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise InputError("cannot-write-folder", path=path, why=why) from error


def read_regular(path: str | Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Read a regular file; a pipe or a device, at which reading may never end, is refused, and so is a huge file.

    Args:
        path: The file. It may be a link to a regular file.
        limit: The most bytes that it may have.
    Returns:
        Its bytes.
    Raises:
        InputError: It is not a regular file ("not-a-regular-file") or too large ("file-too-large").
        OSError: It cannot be read.
    Example:
        >>> read_regular(write_text("a.txt", "eps"))
        b'eps'
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > limit:
            raise InputError("file-too-large", path=path, bytes=found.st_size, limit=limit)
        return file.read(found.st_size)  # not what is appended meanwhile


def refuse_link(folder: Path) -> None:
    """Raise InputError if a folder in which files are to be written is a link: they would be written elsewhere."""
    found = status(folder)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        raise InputError("linked-folder", path=folder)


def sha256_of_file(path: str | Path) -> str:
    """Return the SHA-256 of a regular file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading; opening a pipe would wait for its writer."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # before fdopen, which raises for a folder and leaves it open
        os.close(handle)
        raise InputError("not-a-regular-file", path=path)
    return os.fdopen(handle, "rb")


def open_in_place(path: str | Path, flags: int = 0) -> int:
    """Open a file to write in it, and return its handle; the caller closes it.

    A link is refused, and so is a file that has a second name (a hard link): writing would change another file.

    Raises:
        InputError: It is a link, has another name, or is not a regular file ("linked-file").
        OSError: It cannot be opened.
    """
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, os.O_RDWR | flags | extra, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise InputError("linked-file", path=path, what="a link") from error
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        what = f"a file with {found.st_nlink} names" if stat.S_ISREG(found.st_mode) else "not a regular file"
        raise InputError("linked-file", path=path, what=what)
    return handle


def status(path: str | Path) -> os.stat_result | None:
    """Return the status of what lies at a path, of a link itself; None only if nothing is there.

    Raises:
        InputError: It cannot be told whether something is there, such as without permission to look.
    """
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError("cannot-look", path=path, reason=getattr(error, "strerror", None) or error) from error


def list_names(folder: str | Path) -> list[str]:
    """Return the sorted names in a folder; none only if there is no such folder.

    `Path.glob` and `Path.exists` answer "nothing" also if they may not look. Whoever deletes or overwrites asks here.

    Raises:
        InputError: The folder cannot be read.
    """
    try:
        return sorted(entry.name for entry in Path(folder).iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError("cannot-look", path=folder, reason=error.strerror or error) from error


# ---- TOML


def to_toml(settings: Mapping[str, object], comments: Mapping[str, str] | None = None) -> str:
    """Convert settings to TOML text, leaving out those that are None.

    Args:
        settings: Numbers, text, dates, paths, lists and nested mappings by name.
        comments: Text to put above a `key`, a `table` or a `table.key`.
    Returns:
        The text.
    Example:
        >>> print(to_toml({"epochs": 15, "attack": {"eps": 0.1}}, {"attack.eps": "radius"}), end="")
        epochs = 15
        <BLANKLINE>
        [attack]
        # radius
        eps = 0.1
    """
    text = tomli_w.dumps(_table(settings, ""))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("setting-not-utf8", character=error.object[error.start]) from None
    return _add_comments(text, comments) if comments else text


def from_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; an error names the file and the line.

    Args:
        path: The file.
    Returns:
        Its tables as nested dicts.
    Example:
        >>> _ = Path("config.toml").write_text("epochs = 15")
        >>> from_toml("config.toml")
        {'epochs': 15}
    """
    path = Path(path)
    try:
        return tomllib.loads(read_regular(path, MAX_TOML_BYTES).decode())
    except OSError as error:
        why = error.strerror or error
        raise InputError("cannot-read-toml", path=path, why=why) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError("toml-not-utf8", path=path, line=line) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError("not-toml", path=path, error=error) from error


def _table(settings: Mapping[Any, object], where: str) -> dict[str, object]:
    if bad := [f"{where}{key!r}" for key in settings if not isinstance(key, str)]:
        raise InputError("setting-name", name=bad[0])
    return {key: _value(value, f"{where}{key}") for key, value in settings.items() if value is not None}


def _value(value: object, name: str) -> object:
    if isinstance(value, Mapping):
        return _table(value, f"{name}.")
    if isinstance(value, list | tuple):
        return [_value(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, _TOML_TYPES):
        return value
    raise InputError("setting-type", name=name, value=value)


def _add_comments(text: str, comments: Mapping[str, str]) -> str:
    lines, table = [], ""
    for line in text.removesuffix("\n").split("\n"):  # not splitlines, which also splits at U+0085 and U+2028
        key = table + line.partition(" = ")[0]
        if line.startswith("["):  # a table; lists in lists are indented
            key = line.strip("[]")
            table = f"{key}."
        lines += [f"# {part}" for part in comments[key].splitlines()] if key in comments else []
        lines.append(line)
    return "\n".join(lines) + "\n"
