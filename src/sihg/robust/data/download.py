"""Download published data files: resume where a download stopped, and take the next mirror where one fails."""

import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import requests
import urllib3

from sihg.errors import InputError, UnknownNameError
from sihg.robust.data.file_checks import examine
from sihg.robust.data.locations import Published, Source, data_folder, locate
from sihg.robust.data.sources import SOURCES
from sihg.store.files import make_parents, status, sync_folder

CHUNK_BYTES = 1 << 18
TIMEOUT = (10.0, 30.0)  # seconds to connect, and to the next bytes
TRIES = 5  # per mirror, as long as each brings something
SPARE_BYTES = 10_000_000  # to leave free on the disk
Progress = Callable[[str, int, int], object]  # file, bytes done, bytes in all


class _MirrorError(Exception):
    """Raised when a mirror fails; `again` says whether to try it once more."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


def fetch(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Download the files of a set that are missing or damaged; return their paths."""
    if name not in SOURCES:
        raise UnknownNameError("data set to download", name, list(SOURCES))
    source, folder = SOURCES[name], data_folder(data_dir)
    wanted = _wanted(source, folder)
    _make_room(wanted, folder)
    return [_fetch_file(file, folder, source, progress or (lambda *_: None)) for file in wanted]


def _wanted(source: Source, folder: Path) -> list[Published]:
    """List the published files that contain a missing part, or replace a damaged file at the same path."""
    found, missing = locate(source, folder)
    paths = {place.path for part in missing for place in part.places}
    for path, pieces in found.items():
        verdict, _ = examine(source, path, pieces)
        if verdict.state == "damaged":
            place = pieces[0][1].path
            if place not in {file.path for file in source.published}:
                raise InputError("data-damaged", path=str(path), verdict=verdict, name=source.name)
            paths.add(place)
    return [file for file in source.published if file.path in paths]


def _make_room(files: list[Published], folder: Path) -> None:
    try:
        needed = sum(file.size - _size(_part(folder / file.path)) for file in files)
        make_parents(folder / "any")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise InputError("data-folder-unwritable", folder=folder, reason=error.strerror or error) from error
    if files and needed + SPARE_BYTES > free:
        raise InputError("disk-full", needed=needed / 1000000.0, folder=folder, free=free / 1000000.0)


def _fetch_file(file: Published, folder: Path, source: Source, progress: Progress) -> Path:
    """Download one file from the first mirror that has all of it."""
    target = folder / file.path
    reasons = []
    try:
        make_parents(target)
        for url in file.urls:
            try:
                _from_mirror(url, file, _part(target), progress)
            except _MirrorError as error:
                reasons.append(f"{url}: {error}")
            else:
                _part(target).replace(target)  # a link at the target is replaced, not followed
                sync_folder(target.parent)
                return target
    except OSError as error:
        raise InputError("data-file-unwritable", target=target, reason=error.strerror or error) from error
    names = ", ".join(Path(other.path).name for other in source.published)
    raise InputError(
        "download-failed",
        name=source.name,
        file=target.name,
        reasons="; ".join(reasons),
        folder=target.parent,
        files=names,
        source=file.urls[0].rpartition("/")[0],
    )


def _from_mirror(url: str, file: Published, part: Path, progress: Progress) -> None:
    """Fill `part` from one mirror until its size and md5 are right."""
    for left in reversed(range(TRIES)):
        begun = _size(part)
        try:
            if begun != file.size:
                begun = _append(url, file, part, progress)
            if _size(part) != file.size:
                raise _MirrorError(f"ended after {_size(part)} of {file.size} bytes", again=_size(part) > begun)
            with part.open("rb") as handle:
                found = hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
                os.fsync(handle.fileno())
            if found != file.md5:
                part.unlink()
                raise _MirrorError(f"md5 expected {file.md5}, found {found}", again=begun > 0)
        except _MirrorError as error:
            if not (error.again and left):
                raise
        else:
            return


def _append(url: str, file: Published, part: Path, progress: Progress) -> int:
    """Request the bytes that `part` lacks; return the size that it continued from."""
    begun = _size(part)
    if begun > file.size:
        part.unlink()
        begun = 0
    asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begun}-"} if begun else {})
    done = begun
    try:
        with requests.get(url, headers=asked, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
                mode = os.O_APPEND
            elif response.status_code == 200:  # the whole file, although a range was requested
                mode, begun, done = os.O_TRUNC, 0, 0
            else:
                raise _MirrorError(f"answered {response.status_code} {response.reason}")
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and begun + int(length) != file.size:
                raise _MirrorError(f"offers {begun + int(length)} bytes instead of {file.size}")
            with _open_part(part, mode) as out:
                for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                    done += len(chunk)
                    if done > file.size:
                        raise _MirrorError(f"gave more than {file.size} bytes")
                    out.write(chunk)
                    progress(Path(file.path).name, done, file.size)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _MirrorError(_short(error), again=done > begun) from error
    return begun


def _short(error: BaseException) -> str:
    """Return the innermost reason, which is the informative one."""
    while isinstance(inner := getattr(error, "reason", None) or (error.args and error.args[0]), BaseException):
        error = inner
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _open_part(part: Path, flags: int) -> BinaryIO:
    """Open a part to append to it or to begin again; a link to another file raises OSError."""
    flags |= os.O_WRONLY | os.O_CREAT
    for extra in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # not every system has all
        flags |= getattr(os, extra, 0)
    return os.fdopen(os.open(part, flags, 0o666), "wb")


def _size(part: Path) -> int:
    """Return the bytes of a part that an earlier download left; delete a link or a pipe in its place."""
    found = status(part)
    if found is None:
        return 0
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        part.unlink()
        return 0
    return found.st_size
