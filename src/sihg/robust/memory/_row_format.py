"""What a row of the perturbation memory holds: rounded values, the number of the sample, the epoch, a checksum."""

import json
import math
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.parse import Value

Rows = NDArray[np.uint8]  # one row per sample: its values, padded to a multiple of four bytes, then the tag
Index = NDArray[np.int64]
RowTags = NDArray[np.uint32]

DTYPES: dict[str, Any] = {"int8": np.int8, "fp16": np.float16, "fp32": np.float32}
TAG_BYTES = 12  # three little-endian uint32: sample, epoch + 1 (0: never written), checksum
INT8_STEPS = 127  # int8 holds round(127 delta / eps)
TOLERANCE = 1e-3  # how far, relative to eps, rounding may move a perturbation out of its ball
RESTORE = "restore the folder as it was, or train again in another folder"


class RowFormat:
    """Encodes, decodes and checks rows.

    Args:
        n: The number of samples of the memory.
        shape: The shape of a sample.
        eps: The largest entry of a perturbation.
        dtype: int8, fp16 or fp32.
        folder: The folder of the rows, for messages; None in RAM.
    """

    def __init__(self, n: int, shape: tuple[int, ...], eps: float, dtype: str, folder: Path | None) -> None:
        self.shape, self.eps, self.dtype, self.folder = shape, eps, dtype, folder
        self.kind: np.dtype[Any] = np.dtype(DTYPES[dtype]).newbyteorder("<")
        self.values = math.prod(shape)
        self.value_bytes = self.values * int(self.kind.itemsize)
        self.row_bytes = -(-self.value_bytes // 4) * 4 + TAG_BYTES
        self.header: dict[str, Value] = {"n": n, "shape": list(shape), "eps": eps, "dtype": dtype}
        self.saved_seed = crc32(json.dumps(self.header).encode())  # a row of another memory has another checksum
        self.seed = self.saved_seed  # of rows in place; `saved_seed` is that of a `state`

    def identify(self, identity: bytes) -> None:
        """Let the id of a folder enter the checksums."""
        self.seed = crc32(identity, self.saved_seed)

    def stored(self, rows: Rows) -> NDArray[Any]:
        """Return the values of rows, as a view."""
        return rows[:, : self.value_bytes].view(self.kind)

    def tags(self, rows: Rows) -> RowTags:
        """Return sample, epoch + 1 and checksum of rows, as a view."""
        return rows[:, -TAG_BYTES:].view("<u4")

    def checksums(self, rows: Rows, seed: int | None = None) -> RowTags:
        """Compute the checksums of rows, over everything but the checksum itself."""
        data, size, seed = memoryview(rows.reshape(-1).data), self.row_bytes, self.seed if seed is None else seed
        return np.array([crc32(data[i : i + size - 4], seed) for i in range(0, rows.size, size)], np.uint32)

    @property
    def limit(self) -> float:
        """The largest entry of a perturbation that can be stored."""
        return self.eps * (1 + TOLERANCE)

    def check_values(self, delta: NDArray[np.float32], where: Index) -> None:
        """Raise InputError if a perturbation is too large, NotFiniteError if it is NaN or infinite."""
        if not np.abs(delta).max(initial=0) <= self.limit:  # nan too
            _refuse_values(delta, where, self.limit)

    def encode(self, delta: NDArray[np.float32], where: Index) -> Rows:
        """Return rows of rounded delta / eps, without tags."""
        self.check_values(delta, where)
        rows = np.zeros((len(where), self.row_bytes), np.uint8)
        if self.dtype == "int8":
            scaled = delta * np.float32(INT8_STEPS / self.eps)
            self.stored(rows)[:] = np.rint(scaled, out=scaled)  # within 127, since TOLERANCE is below 1/254
        else:
            self.stored(rows)[:] = (delta / np.float32(self.eps)).clip(-1, 1)
        return rows

    def decode(self, rows: Rows) -> Tensor:
        """Return the perturbations of rows as float32."""
        values = self.stored(rows).astype(np.float32)
        if self.dtype == "int8":
            values /= INT8_STEPS  # first, so that 127 gives eps itself
        values *= np.float32(self.eps)
        return torch.from_numpy(values).view(len(rows), *self.shape)

    def tag(self, rows: Rows, where: Index, epoch: int) -> None:
        """Write the tags of rows."""
        tags = self.tags(rows)
        tags[:, 0] = where
        tags[:, 1] = epoch + 1
        tags[:, 2] = self.checksums(rows)

    def check(self, rows: Rows, where: Index, slot: int, seed: int | None = None) -> None:
        """Raise InputError unless the rows of a generation are exactly what was written for these samples."""
        tags, sums = self.tags(rows), self.checksums(rows, seed)
        good = (tags[:, 2] == sums) & (tags[:, 0] == where) & (tags[:, 1] % 2 != slot)  # epoch % 2 == slot
        if not good.all():
            good |= (tags[:, 1] == 0) & ~rows.any(axis=1)  # never written
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            self._refuse_row(rows[i : i + 1], int(where[i]), slot, int(sums[i]))

    def refuse_changed(self, row: Rows, sample: int, slot: int, saved: RowTags, epoch: int) -> NoReturn:
        """Raise the error of a row that is not as the checkpoint has it."""
        (wanted, checksum), (_, later, found) = saved.tolist(), self.tags(row)[0].tolist()
        computed, retagged = int(self.checksums(row)[0]), row.copy()
        self.tags(retagged)[:, 1] = wanted
        if later != wanted and wanted and checksum == found == int(self.checksums(retagged)[0]):
            damage, what = "epoch-tag", f"has a damaged epoch tag: {_epoch_of(later)} instead of {_epoch_of(wanted)}"
        elif not row.any():
            damage, what = "zero", f"is zero but was written in {_epoch_of(wanted)}"
        elif later > epoch + 1 and later % 2 != slot:
            refuse_late(sample, later - 1, epoch)
        elif later != wanted:
            damage, what = "stale", f"holds {_epoch_of(later)} instead of {_epoch_of(wanted)}"
        elif not wanted:
            damage, what = "never-written", "was never written but is not zero"
        elif found != checksum:
            damage, what = "checksum", f"has the checksum {found:08x}, the checkpoint says {checksum:08x}"
        else:
            damage, what = "checksum", f"has the checksum {found:08x} instead of {computed:08x}"
        self._refuse_damage(sample, damage, what)

    def _refuse_row(self, row: Rows, sample: int, slot: int, expected: int) -> NoReturn:
        owner, later, found = self.tags(row)[0].tolist()
        if later == 0:
            damage, what = "never-written", "was never written but is not zero"
        elif found != expected:
            damage, what = "checksum", f"has the checksum {found:08x} instead of {expected:08x}"
        elif owner != sample:
            damage, what = "sample", f"holds the row of sample {owner}"
        else:
            damage, what = "generation", f"of generation {slot} holds a row of epoch {later - 1}"
        self._refuse_damage(sample, damage, what)

    def _refuse_damage(self, sample: int, damage: str, what: str) -> NoReturn:
        where = "" if self.folder is None else f" in {self.folder}"
        remedy = "resume from the last checkpoint" if self.folder is None else RESTORE
        raise InputError("memory-row-damaged", sample=sample, damage=damage, where=where, what=what, remedy=remedy)


def check_dtype(dtype: str) -> None:
    """Raise UnknownNameError unless the memory has this number format.

    Args:
        dtype: One of `DTYPES`.
    Example:
        >>> check_dtype("int8")
    """
    if dtype not in DTYPES:
        raise UnknownNameError("dtype of the memory", dtype, list(DTYPES))


def refuse_late(sample: int, last: int, epoch: int) -> NoReturn:
    """Raise the error of a perturbation that a later epoch has overwritten."""
    raise InputError("memory-overwritten", sample=sample, epoch=epoch, last=last)


def _epoch_of(tag: int) -> str:
    return f"epoch {tag - 1}" if tag else "no epoch"


def _refuse_values(delta: NDArray[np.float32], where: Index, limit: float) -> None:
    finite = np.isfinite(delta).all(axis=1)
    if not finite.all():
        i = int(where[~finite][0])
        raise NotFiniteError("memory-not-finite", sample=i)
    size = np.abs(delta).max(axis=1)
    i = int(np.flatnonzero(size > limit)[0])
    raise InputError("memory-delta-range", sample=int(where[i]), most=limit / (1 + TOLERANCE), size=size[i])
