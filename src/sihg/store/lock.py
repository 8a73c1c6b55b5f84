"""Let one process at a time work in a folder."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sihg.errors import InputError

LOCK_NAME = ".lock"


class InUseError(InputError):
    """Raised when another process holds a folder's lock."""


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold a folder's lock; the kernel frees it when the process ends, however it ends.

    The lock file stays and names its holder: removing it would let two processes lock two files of that name.

    Args:
        folder: An existing folder.
    Raises:
        InUseError: If another process, or another block of this one, holds the lock.
        InputError: If the folder is missing, cannot be written to, or lies on a disk without locks.
    Example:
        >>> with locked("."):
        ...     Path(".lock").read_text().startswith(f"{os.getpid()} on ")
        True
    """
    from filelock import FileLock, Timeout  # takes 30 ms

    path = Path(folder) / LOCK_NAME
    lock = FileLock(path, timeout=0, preserve_lock_file=True, on_acquired=_write_holder)
    try:
        path.parent.stat()  # FileLock would make a missing folder
        lock.acquire()
    except Timeout:
        raise InUseError("folder-in-use", folder=folder, holder=_read_holder(path)) from None
    except OSError as error:
        raise InputError("cannot-lock", folder=folder, reason=error.strerror or error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the name is for people; the lock itself is freed below
            os.truncate(path, 0)
        lock.release()


def _write_holder(handle: int) -> None:
    with suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()} on {platform.node()}".encode())


def _read_holder(path: Path) -> str:
    with suppress(OSError):  # Windows does not let others read a locked file
        if holder := path.read_text(encoding="utf-8", errors="replace"):
            return f"process {holder}"
    return "another process"
