"""One process at a time in a run's folder."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sihg.errors import InputError

NAME = ".lock"


class InUseError(InputError):
    """Another process holds the lock."""


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel frees it when the process ends, however it ends."""
    path = Path(folder) / NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"cannot lock {folder} ({error.strerror or error}): choose a folder to write in") from error
    try:
        _take(handle, folder)
        with suppress(OSError):  # a full disk: the lock holds without a name in it
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()} on {platform.node()}".encode())
        try:
            yield
        finally:  # the file stays: removing it would let two processes lock two files of that name
            with suppress(OSError):
                os.ftruncate(handle, 0)
            _free(handle)
    finally:
        os.close(handle)


def _take(handle: int, folder: str | Path) -> None:
    try:
        _lock(handle)
    except (BlockingIOError, PermissionError):
        os.lseek(handle, 0, os.SEEK_SET)
        holder = os.read(handle, 200).decode(errors="replace")
        who = f"process {holder}" if holder else "another process"
        raise InUseError(f"{folder} is in use by {who}: wait for it or stop it") from None
    except OSError as error:
        raise InputError(
            f"cannot lock {folder} ({error.strerror or error}): choose a folder on another disk"
        ) from error


if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # a locked byte cannot be read there, so lock one behind the text

    def _lock(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

    def _free(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _free(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)  # explicitly, since a forked child may share the handle
