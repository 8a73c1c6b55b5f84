"""Intercept every call by which Python code changes a file system; only for a forked child, which never goes back."""

import builtins
import io
import mmap
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = (
    *("open", "write", "fsync", "fdatasync", "replace", "rename", "link", "symlink", "mkdir", "unlink", "remove"),
    *("rmdir", "truncate", "ftruncate", "posix_fallocate"),
)


@dataclass(frozen=True)
class Call:
    """A call that is about to happen; mmap.flush is called msync."""

    number: int
    name: str
    place: object  # a path or a file descriptor

    def __str__(self) -> str:
        place = self.place
        if isinstance(place, int):
            place = os.path.relpath(Path(f"/proc/self/fd/{place}").readlink())
        return f"call {self.number}, {self.name} {place}"


Before = Callable[[Call], int | None]  # may return the number of bytes that the disk takes of a write
After = Callable[[Call], object]


def intercept(before: Before, after: After = lambda _call: None) -> None:
    """From here on, call `before` and `after` around each call. What they do themselves is not intercepted."""
    count, inside = 0, False

    def around(name: str, place: object, do: Callable[[int | None], Any]) -> Any:
        nonlocal count, inside
        if inside:
            return do(None)
        call = Call(count, name, place)
        count += 1
        try:
            inside = True
            limit = before(call)
            result = do(limit)
            after(call)
        finally:
            inside = False
        return result

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            place = args[0]
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return real(*args, **options)
            if isinstance(place, int) and not _is_stored(place):
                return real(*args, **options)
            if name == "write":
                return around(name, place, lambda limit: real(place, args[1][:limit]))
            return around(name, place, lambda _limit: real(*args, **options))

        return call

    class Raw(io.FileIO):
        def write(self, data: Any, /) -> int:
            part = memoryview(data).cast("B")
            return int(around("write", self.fileno(), lambda limit: super(Raw, self).write(part[:limit])))

        def truncate(self, size: int | None = None, /) -> int:
            return int(around("ftruncate", self.fileno(), lambda _limit: super(Raw, self).truncate(size)))

    class Map(mmap.mmap):
        def __new__(cls, fileno: int, *args: Any, **options: Any) -> "Map":
            made = super().__new__(cls, fileno, *args, **options)
            made.handle = os.dup(fileno)
            return made

        handle: int

        def flush(self, *args: Any) -> None:
            around("msync", self.handle, lambda _limit: super(Map, self).flush(*args))

    real_open = io.open

    def open_file(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
        """Open a file as `open` does, but so that each write of its buffer is a call of ours."""
        if inside or not set(mode) & set("wax+") or (isinstance(file, int) and not _is_stored(file)):
            return real_open(file, mode, buffering, *args, **options)
        how, named = mode.translate(str.maketrans("", "", "bt")), not isinstance(file, int)
        raw_options = {key: options.pop(key) for key in ("closefd", "opener") if key in options}
        raw = around("open", file, lambda _limit: Raw(file, how, **raw_options)) if named else Raw(file, how)
        if buffering == 0:
            return raw
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *args, **options)

    for name in NAMES:
        setattr(os, name, wrapped(name, getattr(os, name)))
    builtins.open = io.open = open_file
    mmap.mmap = Map  # type: ignore[misc]
    shutil._use_fd_functions = False  # type: ignore[attr-defined] # rmtree then names whole paths


def _is_stored(handle: int) -> bool:
    """Return whether a descriptor is of a file or a folder, not of a pipe or a terminal."""
    mode = os.fstat(handle).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
