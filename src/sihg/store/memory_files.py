"""The files of a perturbation memory: reserved whole, described by memory.json, mapped into memory."""

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sihg.errors import InputError
from sihg.parse import Value
from sihg.store.files import write_text

MappedRows = np.memmap[tuple[int, int], np.dtype[np.uint8]]
ROWS_KEY = "rows_a_chunk"  # in memory.json


def map_generations(
    folder: Path, header: Mapping[str, Value], n: int, row_bytes: int, rows_per_chunk: int
) -> tuple[int, list[list[MappedRows]]]:
    """Map the files of both generations; reserve them if the folder has none.

    Returns:
        The rows per file, as found in an existing folder, and the files of each generation.
    """
    manifest = folder / "memory.json"
    if manifest.exists():
        rows_per_chunk = _read_rows_per_chunk(manifest, header)
    sizes = [min(rows_per_chunk, n - first) * row_bytes for first in range(0, n, rows_per_chunk)]
    files = [(folder / f"generation{g}-{c:04d}.bin", size) for g in range(2) for c, size in enumerate(sizes)]
    if not manifest.exists():
        _reserve(folder, files)
        write_text(manifest, json.dumps({**header, ROWS_KEY: rows_per_chunk}))  # last: the files are complete
    maps = [_map(path, size, row_bytes) for path, size in files]
    return rows_per_chunk, [maps[: len(sizes)], maps[len(sizes) :]]


def _read_rows_per_chunk(manifest: Path, header: Mapping[str, Value]) -> int:
    try:
        saved = json.loads(manifest.read_text(encoding="utf-8"))
        rows_per_chunk = int(saved.pop(ROWS_KEY))
        if rows_per_chunk < 1:
            raise ValueError(f"{ROWS_KEY} = {rows_per_chunk}")
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError("memory-manifest", manifest=manifest, error=error) from error
    wrong = {key: saved.get(key) for key, value in header.items() if saved.get(key) != value}
    if wrong:
        differences = ", ".join(f"{key} = {found} where {header[key]} is needed" for key, found in wrong.items())
        raise InputError("memory-folder", folder=manifest.parent, differences=differences)
    return rows_per_chunk


def _reserve(folder: Path, files: Sequence[tuple[Path, int]]) -> None:
    """Make all files with their space, or none: a full disk under a memory map would kill the process."""
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, size in files:
            if not path.exists():
                made.append(path)
            _reserve_file(path, size)
    except OSError as error:
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        for path in made:
            path.unlink(missing_ok=True)
        needed = sum(size for _, size in files)
        raise InputError(
            "memory-disk-full", needed=needed, folder=folder, reason=error.strerror or error, free=free
        ) from error


def _reserve_file(path: Path, size: int) -> None:
    """Give a file its whole space; do not change its content."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            os.posix_fallocate(handle, 0, size)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            end = os.lseek(handle, 0, os.SEEK_END)
            while end < size:
                end += os.write(handle, bytes(min(size - end, 2**20)))
        os.fsync(handle)
    finally:
        os.close(handle)


def _map(path: Path, size: int, row_bytes: int) -> MappedRows:
    try:
        found = path.stat().st_size
        if found == size:
            return np.memmap(path, np.uint8, "r+", shape=(size // row_bytes, row_bytes))
    except OSError as error:
        raise InputError("memory-file-unreadable", path=path, reason=error.strerror or error) from error
    raise InputError("memory-file-size", bytes=found, path=path, size=size)
