"""Samples that are not in memory: a source reads rows when they are needed, and each batch is checked then."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.threat import Bounds

MAX_PROBED = 256  # rows that stand for all, where a look at all would read all
MAX_PROBED_BYTES = 2**26
Index = Tensor | slice | Sequence[int]


class RowSource(ABC):
    """Where rows come from. `shape` is that of one sample, `dtype` uint8, float32 or float64."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_random: bool = False  # whether reading a row again may give another sample
    is_repeatable: bool = True  # whether the same (seed, epoch, row) gives the same sample
    runs_user_code: bool = False  # which may draw from Python's, numpy's and torch's own generators

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: Sequence[int], seed: int, epoch: int) -> Tensor:
        """Read these rows, in this order, as (n, *shape) of `dtype`; seed and epoch decide random transforms."""


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Some rows of a source, and what is checked when they are read.

    Args:
        source: What reads them.
        index: The rows of the source.
        name: What messages call the set.
        bounds: Between which all values must lie; None for no bounds.
        workers: Threads or, for a torch Dataset, processes that read ahead; 0 for one thread, or no process.
    """

    source: RowSource
    index: Tensor
    name: str
    bounds: Bounds = None
    workers: int = 0

    def __len__(self) -> int:
        return len(self.index)

    @property
    def bytes_in_memory(self) -> int:
        """How many bytes all rows would take."""
        return len(self) * self.bytes_per_row

    @property
    def bytes_per_row(self) -> int:
        """How many bytes one row takes."""
        return self.source.dtype.itemsize * torch.Size(self.source.shape).numel()

    def take(self, index: Index) -> "LazyRows":
        """Return some of the rows, without reading them."""
        return replace(self, index=self.index[_as_index(index)])

    def placeholder(self) -> Tensor:
        """Return a tensor without values that has the shape and type of all rows."""
        return torch.empty((len(self), *self.source.shape), dtype=self.source.dtype, device="meta")

    def read(self, index: Index, seed: int = 0, epoch: int = 0, *, floats: bool = False) -> Tensor:
        """Read rows as they are stored, or as models see them, and check them; an error names the source's row."""
        rows = self.index[_as_index(index)]
        x = self.source.read(rows.tolist(), seed, epoch)
        self._check(x, rows)
        return as_floats(x) if floats else x

    def probe(self) -> Tensor:
        """Read a few rows, spread evenly, which stand for all."""
        return self.read(probed(len(self), self.bytes_per_row))

    def _check(self, x: Tensor, rows: Tensor) -> None:
        if x.dtype != torch.uint8 and not bool(x.isfinite().all()):
            place = (~x.isfinite().flatten(1)).nonzero()[0]
            bad = x.flatten(1)[tuple(place.tolist())].item()
            raise InputError("sample-not-finite", row=int(rows[place[0]]), name=self.name, bad=bad)
        if self.bounds is None or (x.dtype == torch.uint8 and _are_unit(self.bounds)):
            return
        values = as_floats(x)
        low, high = (torch.as_tensor(bound, dtype=values.dtype, device="cpu") for bound in self.bounds)
        outside = ((values < low) | (values > high)).flatten(1).any(1)
        if bool(outside.any()):
            first = int(outside.nonzero()[0])
            worst = {"low": float(values[first].min()), "high": float(values[first].max())}
            raise InputError("row-outside-bounds", row=int(rows[first]), name=self.name, **worst)


def as_floats(x: Tensor) -> Tensor:
    """Return samples as models see them: uint8 as float32 in [0, 1], floats unchanged."""
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def probed(n: int, bytes_per_row: int) -> Tensor:
    """Return the rows that stand for n: all if they are few, else up to 256, spread evenly from first to last."""
    count = max(1, min(n, MAX_PROBED, MAX_PROBED_BYTES // max(1, bytes_per_row)))
    return torch.linspace(0, n - 1, count, dtype=torch.float64).round().long()


def check_same_shape(x: Tensor, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise InputError unless a row is like the first one."""
    if tuple(x.shape) != shape or x.dtype != dtype:
        found = {"dtype": x.dtype, "shape": tuple(x.shape)}
        raise InputError("samples-differ", row=row, **found, first_dtype=dtype, first_shape=shape)


def _as_index(index: Index) -> Tensor | slice:
    return index if isinstance(index, Tensor | slice) else torch.as_tensor(index, dtype=torch.int64)


def _are_unit(bounds: Sequence[object]) -> bool:
    return all(isinstance(bound, int | float) for bound in bounds) and tuple(bounds) == (0, 1)
