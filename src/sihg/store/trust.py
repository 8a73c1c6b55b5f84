"""Which folders this user's own commands made, and so may name code to run and data to read.

A folder of results is data. Somebody else's must not decide what runs here. Each user has a key in the state folder
(`$XDG_STATE_HOME/sihg`, by default `~/.local/state/sihg`). A folder that a command makes gets a file `.owner`: an HMAC
over the folder's inode and its settings. A copy has another inode, and changed settings have another sum: both count as
foreign. A folder that is moved on the same disk stays the user's own.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sihg.errors import InputError
from sihg.store.files import make_parents, read_regular, sync_folder, write_bytes

OWNER = ".owner"
KEY_BYTES = 32
MAX_OWNER_BYTES = 1024


def user_key() -> bytes | None:
    """Return the user's key, made on first use; None if it can be neither read nor kept."""
    path = _key_path()
    if path is None:
        return None
    with suppress(OSError, InputError, ValueError):
        if not path.exists():
            _make_key(path)
        key = bytes.fromhex(read_regular(path, MAX_OWNER_BYTES).decode("ascii"))
        return key if len(key) == KEY_BYTES else None
    return None


def mark_own(folder: Path, settings: bytes) -> None:
    """Mark a folder as the user's own, before these settings are written to it. Without a key, do nothing.

    The mark of the settings so far stays beside it: a kill may come before the new settings are written.
    """
    key = user_key()
    if key is not None:
        before = _read_marks(folder)[:1]
        write_bytes(folder / OWNER, b"\n".join([_mark(key, folder, settings), *before]))


def is_own(folder: Path, settings: Path) -> bool:
    """Return whether this user's own command made the folder with the settings in this file."""
    try:
        key, content = user_key(), read_regular(settings)
        mark = b"" if key is None else _mark(key, folder, content)
    except (OSError, InputError):
        return False
    return bool(mark) and any(hmac.compare_digest(found, mark) for found in _read_marks(folder))


def check_code(folder: Path, settings: Path, named: Mapping[str, str], *, trust: bool) -> None:
    """Raise InputError if a foreign folder names code to run, and the user has not said that it may.

    Args:
        folder: The folder of results.
        settings: The file in it that names the code.
        named: What is named, such as {"model": "nets.py:make"}.
        trust: Whether the user has said that it may run.
    """
    if named and not trust and not is_own(folder, settings):
        code = ", ".join(f"{kind} {name}" for kind, name in named.items())
        raise InputError("foreign-code", folder=folder, code=code, settings=settings)


def _read_marks(folder: Path) -> list[bytes]:
    try:
        return read_regular(folder / OWNER, MAX_OWNER_BYTES).split(b"\n")
    except (OSError, InputError):
        return []


def _mark(key: bytes, folder: Path, settings: bytes) -> bytes:
    about = f"sihg folder {folder.stat().st_ino} {hashlib.sha256(settings).hexdigest()}"
    return hmac.new(key, about.encode(), hashlib.sha256).hexdigest().encode()


def _key_path() -> Path | None:
    given = os.environ.get("XDG_STATE_HOME")
    try:
        base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:  # the user has no home
        return None
    return base / "sihg" / "key"


def _make_key(path: Path) -> None:
    """Write a new key that only the user can read, unless another process is quicker."""
    make_parents(path)
    temporary = path.with_name(f".key.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
