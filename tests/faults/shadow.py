"""What a disk holds after a power cut, in the worst cases that POSIX allows.

A file's content is safe as of its last fsync or msync, the names in a folder as of the folder's last fsync. What came
after may be lost or kept. Everything is known by its inode; an open descriptor keeps the kernel from using it again.
"""

import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.calls import Call

PAGE = 4096
SYNCS = ("fsync", "fdatasync", "msync")


@dataclass(frozen=True)
class Loss:
    """Which of the changes that were not synced reach the disk."""

    name: str
    keeps_names: Callable[[], bool]  # asked for each folder
    keeps_content: Callable[[], bool]  # asked for each page of a file


def losses(seed: int) -> list[Loss]:
    """Return the extremes, and one mixture."""
    draw = random.Random(seed)
    coin = lambda: draw.random() < 0.5  # noqa: E731
    no, yes = (lambda: False), (lambda: True)
    return [
        Loss("all lost", no, no),
        Loss("only names kept", yes, no),
        Loss("only contents kept", no, yes),
        Loss("a mixture kept", coin, coin),
    ]


class Shadow:
    """The safe state of a folder, updated after each sync; at first everything in it is safe."""

    def __init__(self, root: Path) -> None:
        self._held: dict[int, int] = {}  # descriptors by inode
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}  # of a folder: inodes by name
        self._root = self._hold(root)
        for folder, _, files in os.walk(root):
            self._sync(self._hold(folder))
            for file in files:
                self._sync(self._hold(Path(folder, file)))

    def after(self, call: Call) -> None:
        """Note what a call has made safe."""
        if call.name in SYNCS:
            self._sync(self._hold(f"/proc/self/fd/{call.place}"))

    def cut_power(self, target: Path, loss: Loss) -> None:
        """Write to `target` what the disk holds if the power fails now."""
        self._write(self._root, target, loss)

    def _hold(self, path: str | Path) -> int:
        inode = Path(path).stat().st_ino
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def _sync(self, inode: int) -> None:
        if self._is_folder(inode):
            self._names[inode] = self._list(inode)
        else:
            self._content[inode] = self._read(inode)

    def _is_folder(self, inode: int) -> bool:
        return stat.S_ISDIR(os.fstat(self._held[inode]).st_mode)

    def _list(self, inode: int) -> dict[str, int]:
        return {path.name: self._hold(path) for path in Path(f"/proc/self/fd/{self._held[inode]}").iterdir()}

    def _read(self, inode: int) -> bytes:
        handle = self._held[inode]
        return os.pread(handle, os.fstat(handle).st_size, 0)

    def _write(self, inode: int, path: Path, loss: Loss) -> None:
        if self._is_folder(inode):
            path.mkdir(parents=True, exist_ok=True)
            names = self._list(inode) if loss.keeps_names() else self._names.get(inode, {})
            for name, child in names.items():
                self._write(child, path / name, loss)
            return
        old, new = self._content.get(inode, b""), self._read(inode)
        pages = range(0, max(len(old), len(new)), PAGE)
        path.write_bytes(b"".join((new if loss.keeps_content() else old)[at : at + PAGE] for at in pages))
