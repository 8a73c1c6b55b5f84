"""The files of a perturbation memory: reserved whole, described by memory.json, mapped into memory.

memory.json is sealed and has a random id of the folder. The id enters the checksum of every row, so that the rows of
another run are recognised. A link is never followed: writing through it would change another file.
"""

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from sihg.errors import InputError
from sihg.parse import Value
from sihg.store.files import make_parents, status, sync_folder, write_bytes
from sihg.store.seal import NO_SUM, SEAL_KEY, check_seal, seal

MappedRows = np.memmap[tuple[int, int], np.dtype[np.uint8]]
MANIFEST, FORMAT_KEY, SHARDS_KEY, ID_KEY = "memory.json", "format", "shards", "id"
FORMAT = 2  # 1: the samples one after the other in files of equal size
MAX_SHARDS = 64  # those of the order of an epoch (robust/data/batches.py)
ID_BYTES = 16
MAX_MANIFEST_BYTES = 2**16
BLOCK_BYTES = 2**20
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
# A pipe must not block, a link must not be followed; Windows has neither flag, but one for bytes.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


@dataclass(frozen=True)
class MappedShards:
    """The number of shards, the id of their folder, and the mapped files of both generations by shard."""

    id: bytes
    shards: int
    files: tuple[dict[int, MappedRows], dict[int, MappedRows]]


def count_shards(n: int, row_bytes: int, max_bytes: int, least: int) -> int:
    """Return the smallest power of two, from `least` to 64, of shards with at most `max_bytes` each."""
    shards = least
    while shards < MAX_SHARDS and -(-n // shards) * row_bytes > max_bytes:
        shards *= 2
    return shards


def map_generations(
    folder: Path,
    header: Mapping[str, Value],
    n: int,
    row_bytes: int,
    shards: int,
    *,
    existing: bool = False,
    rank: int = 0,
    world_size: int = 1,
) -> MappedShards:
    """Map the files that a process owns; process 0 makes all files if the folder has none.

    Sample i is row i // shards of shard i % shards, which has one file per generation. Process r owns the shards
    v = r mod world_size. No file is mapped by two processes, and another number of processes opens the same files.

    Args:
        folder: The folder of the files.
        header: What memory.json must say about the rows.
        n: The number of rows per generation.
        row_bytes: The size of a row.
        shards: The number of shards of new files, a power of two; existing files keep theirs.
        existing: Whether the files must exist already.
        rank, world_size: The number of this process, and of how many.
    Raises:
        InputError: The files are missing, damaged, links or of another memory, or the disk is full.
    """
    manifest = folder / MANIFEST
    found = status(folder)
    if found is not None and stat.S_ISLNK(found.st_mode):
        raise InputError("memory-file-link", path=folder, what="a symbolic link")
    if status(manifest) is None:
        if existing:
            raise InputError("memory-folder-missing", folder=folder)
        if rank > 0:
            raise InputError("memory-not-made", folder=folder, rank=rank)
        _make(folder, header, n, row_bytes, shards)
    shards, identity = _read_manifest(manifest, header)
    if shards % world_size:
        raise InputError("memory-shards-processes", folder=folder, shards=shards, world_size=world_size)
    sizes = _sizes(n, row_bytes, shards)
    first, second = (
        {v: _map(_file(folder, g, v), sizes[v], row_bytes) for v in range(rank, len(sizes), world_size)}
        for g in range(2)
    )
    return MappedShards(bytes.fromhex(identity), shards, (first, second))


def _sizes(n: int, row_bytes: int, shards: int) -> list[int]:
    """Return the bytes of the files of a generation; a shard without samples has no file."""
    return [len(range(v, n, shards)) * row_bytes for v in range(min(shards, n))]


def _file(folder: Path, generation: int, shard: int) -> Path:
    return folder / f"generation{generation}-{shard:04d}.bin"


def _read_manifest(manifest: Path, header: Mapping[str, Value]) -> tuple[int, str]:
    """Return the number of shards and the id."""
    try:
        with _open(manifest, "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES)
    except OSError as error:
        raise InputError("memory-manifest", manifest=manifest, folder=manifest.parent, error=error) from error
    if (state := check_seal(data)) != "good":
        raise InputError("memory-seal", manifest=manifest, folder=manifest.parent, state=state)
    try:
        saved = json.loads(data)
        layout, shards, identity = saved.pop(FORMAT_KEY, 1), int(saved.pop(SHARDS_KEY, 1)), str(saved.pop(ID_KEY))
        if not is_shard_count(shards) or len(bytes.fromhex(identity)) != ID_BYTES:
            raise ValueError(f"{SHARDS_KEY} = {shards}, {ID_KEY} = {identity}")
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError("memory-manifest", manifest=manifest, folder=manifest.parent, error=error) from error
    if layout != FORMAT:
        raise InputError("memory-format", manifest=manifest, found=layout, wanted=FORMAT)
    wrong = {key: saved.get(key) for key, value in header.items() if saved.get(key) != value}
    if wrong:
        differences = ", ".join(f"{key} = {found} where {header[key]} is needed" for key, found in wrong.items())
        raise InputError("memory-folder", folder=manifest.parent, differences=differences)
    return shards, identity


def expected_files(folder: Path) -> list[Path]:
    """Return memory.json and the files that it says the folder has; the first two if it cannot be read."""
    try:
        with _open(folder / MANIFEST, "rb") as file:
            saved = json.loads(file.read(MAX_MANIFEST_BYTES))
        count = min(int(saved["n"]), int(saved[SHARDS_KEY]), MAX_SHARDS)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        count = 1
    return [folder / MANIFEST, *(_file(folder, g, v) for g in range(2) for v in range(count))]


def is_shard_count(count: int) -> bool:
    """Return whether a memory can have this many shards, or processes: a power of two up to 64."""
    return count >= 1 and MAX_SHARDS % count == 0


def _make(folder: Path, header: Mapping[str, Value], n: int, row_bytes: int, shards: int) -> None:
    """Make all files, then memory.json; raise InputError if rows are there without their memory.json."""
    manifest = folder / MANIFEST
    sizes = _sizes(n, row_bytes, shards)
    files = {_file(folder, g, v): size for g in range(2) for v, size in enumerate(sizes)}
    for path in _reserve_all(folder, files):
        if _map(path, files[path], row_bytes).any():
            raise InputError("memory-manifest", manifest=manifest, folder=folder, error=FileNotFoundError(MANIFEST))
    content = {FORMAT_KEY: FORMAT, **header, SHARDS_KEY: shards}
    content |= {ID_KEY: secrets.token_hex(ID_BYTES), SEAL_KEY: NO_SUM}
    write_bytes(manifest, seal(json.dumps(content).encode()))  # last: the files are complete


def _reserve_all(folder: Path, files: Mapping[Path, int]) -> list[Path]:
    """Make all files with their space, durably, or none: a full disk under a memory map would kill the process.

    Returns:
        The files that were there before.
    """
    made: list[Path] = []
    try:
        make_parents(folder / MANIFEST)
        for path, size in files.items():
            if status(path) is None:
                made.append(path)
            with _open(path, "r+b", os.O_CREAT) as file:
                _reserve(file.fileno(), size)
        sync_folder(folder)
        sync_folder(folder.parent)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise _disk_full(folder, sum(files.values()), error) from error
    return [path for path in files if path not in set(made)]


def _map(path: Path, size: int, row_bytes: int) -> MappedRows:
    """Map a file of exactly this size, after reserving the space of holes that a copy may have."""
    try:
        with _open(path, "r+b") as file:
            found = os.fstat(file.fileno())
            if found.st_size != size:
                raise InputError("memory-file-size", bytes=found.st_size, path=path, size=size, folder=path.parent)
            try:
                _reserve(file.fileno(), size)
            except OSError as error:
                raise _disk_full(path.parent, size - _allocated(found), error) from error
            return np.memmap(file, np.uint8, "r+", shape=(size // row_bytes, row_bytes))
    except OSError as error:
        reason = error.strerror or error
        raise InputError("memory-file-unreadable", path=path, reason=reason, folder=path.parent) from error


def _open(path: Path, mode: str, more_flags: int = 0) -> IO[bytes]:
    """Open a regular file that has one name; raise InputError for links and other kinds of files."""
    try:
        file = open(  # noqa: SIM115
            str(path), mode, buffering=0, opener=lambda name, flags: os.open(name, flags | more_flags | _FLAGS, 0o666)
        )
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError("memory-file-link", path=path, what="a symbolic link") from error
        raise
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return file
    file.close()
    what = "a hard link" if stat.S_ISREG(found.st_mode) else "not a regular file"
    raise InputError("memory-file-link", path=path, what=what)


def _reserve(handle: int, size: int) -> None:
    """Give a file its whole space, durably; do not change its content."""
    try:
        os.posix_fallocate(handle, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _UNSUPPORTED:
            raise
        if _allocated(os.fstat(handle)) < size:
            _write_again(handle, size)
    os.fsync(handle)


def _write_again(handle: int, size: int) -> None:
    """Write every byte that a file has, and zeros up to its size: bytes that were written have their space."""
    done = 0
    while done < size:
        os.lseek(handle, done, os.SEEK_SET)
        most = min(BLOCK_BYTES, size - done)
        block = os.read(handle, most) or bytes(most)
        os.lseek(handle, done, os.SEEK_SET)
        done += os.write(handle, block)


def _allocated(found: os.stat_result) -> int:
    """Return the bytes of a file that have their space; 0 where the system does not tell."""
    return 512 * getattr(found, "st_blocks", 0)


def _disk_full(folder: Path, needed: int, error: OSError) -> InputError:
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    return InputError("memory-disk-full", needed=needed, folder=folder, reason=error.strerror or error, free=free)
