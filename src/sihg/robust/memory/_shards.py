"""The rows that a process owns, by shard: sample i is row i // S of shard i % S, in RAM or in a mapped file."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sihg.errors import InputError
from sihg.robust.memory._row_format import Index, Rows
from sihg.store.memory_files import MappedRows, MappedShards

_WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)  # not on Windows
_RANDOM = getattr(mmap, "MADV_RANDOM", None)


class Shards:
    """Rows of two generations.

    Args:
        count: The number of shards S.
        row_bytes: The size of a row.
        generations: The rows of each owned shard, by its number.
        maps: The mapped files of these rows.
        folder: The folder of the files.
    """

    def __init__(
        self,
        count: int,
        row_bytes: int,
        generations: tuple[dict[int, Rows], dict[int, Rows]],
        maps: tuple[dict[int, MappedRows], dict[int, MappedRows]] = ({}, {}),
        folder: Path | None = None,
    ) -> None:
        self.count, self.generations = count, generations
        self._row_bytes, self._maps, self._folder = row_bytes, maps, folder

    @classmethod
    def in_ram(cls, n: int, row_bytes: int, rank: int, world_size: int) -> "Shards":
        """Make rows in RAM: one shard per process."""
        rows = len(range(rank, n, world_size))
        first, second = ({rank: np.zeros((rows, row_bytes), np.uint8)} for _ in range(2))
        return cls(world_size, row_bytes, (first, second))

    @classmethod
    def mapped(cls, files: MappedShards, row_bytes: int, folder: Path) -> "Shards":
        """Take the rows of mapped files. Batches are random rows: the system shall not read what lies around them."""
        for generation in files.files:
            for rows in generation.values():
                _advise(rows, _RANDOM, 0, rows.size)
        first, second = ({v: np.asarray(rows) for v, rows in generation.items()} for generation in files.files)
        return cls(files.shards, row_bytes, (first, second), files.files, folder)

    def places(self, where: Index) -> Index:
        """Return the rows of samples in their shards."""
        return where // self.count

    def gather(self, slot: int, where: Index, first: int = 0) -> Rows:
        """Return copies of the rows of samples, from their byte `first` on."""
        shards = self.generations[slot]
        if len(shards) == 1:
            (only,), places = shards.values(), self.places(where)
            return only[places, first:] if first else only.take(places, axis=0)
        rows = np.empty((len(where), self._row_bytes - first), np.uint8)
        for v, chosen, places in self._split(where):
            rows[chosen] = shards[v][places, first:]
        return rows

    def scatter(self, slot: int, where: Index, rows: Rows) -> None:
        """Write the rows of samples."""
        for v, chosen, places in self._split(where):
            self.generations[slot][v][places] = rows[chosen]

    def read_soon(self, slot: int, where: Index) -> None:
        """Let the system read the rows of samples from the disk, all at once; do not wait."""
        for v, _, places in self._split(where) if self._folder is not None else ():
            rows = self._maps[slot][v]
            for start, stop in _page_ranges(np.sort(places) * self._row_bytes, self._row_bytes):
                _advise(rows, _WILL_NEED, start, stop - start)

    def clear(self) -> None:
        """Set all rows to zero."""
        for generation in self.generations:
            for shard in generation.values():
                if shard.any():
                    shard[:] = 0

    def flush(self) -> None:
        """Write mapped files to the disk."""
        try:
            for generation in self._maps:
                for rows in generation.values():
                    rows.flush()
        except OSError as error:
            raise InputError("memory-flush", folder=self._folder, reason=error.strerror or error) from error

    def _split(self, where: Index) -> Iterator[tuple[int, slice | Index, Index]]:
        """Yield, per shard: its number, which of the samples it has, and their rows in it."""
        places = self.places(where)
        if len(self.generations[0]) == 1:
            yield next(iter(self.generations[0])), slice(None), places
            return
        shard_of = where % self.count
        order = np.argsort(shard_of, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(shard_of[order])) + 1):
            if len(chosen):
                yield int(shard_of[chosen[0]]), chosen, places[chosen]


def _page_ranges(starts: Index, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of whole pages that hold rows at ascending byte offsets; neighbours are one range."""
    page = mmap.ALLOCATIONGRANULARITY
    firsts, lasts = starts // page * page, -(-(starts + size) // page) * page
    breaks = np.flatnonzero(firsts[1:] > lasts[:-1]) + 1
    for run in np.split(np.arange(len(starts)), breaks):
        if len(run):
            yield int(firsts[run[0]]), int(lasts[run[-1]])


def _advise(rows: MappedRows, advice: int | None, start: int, length: int) -> None:
    """Tell the system how a part of a file will be used; advice changes no result."""
    mapped: mmap.mmap | None = getattr(rows, "_mmap", None)
    if mapped is not None and advice is not None and start < len(mapped):
        mapped.madvise(advice, start, min(length, len(mapped) - start))
