"""The perturbation memory: the perturbation of each sample, kept from one epoch to the next.

It has two generations. In epoch e a sample is read from generation e-1 and written to generation e. So an interrupted
epoch can be resumed: what it had written is written again, identically. Every row holds the number of its sample, the
epoch, and a checksum over both and the values. All three are checked on reading.

A memory in RAM is saved in checkpoints (`state`). A memory in files stays where it is: a checkpoint has the id of its
folder and the tags of all rows (`file_state`), by which `check_files` recognises every row that is not as it was.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.parse import Number, Value, parse_number
from sihg.store.memory_files import ID_BYTES, MappedRows, map_generations

Rows = NDArray[np.uint8]  # one row per sample: its values, padded to a multiple of four bytes, then the tag
Index = NDArray[np.int64]
RowTags = NDArray[np.uint32]

DTYPES: dict[str, Any] = {"int8": np.int8, "fp16": np.float16, "fp32": np.float32}
TAG_BYTES = 12  # three little-endian uint32: sample, epoch + 1 (0: never written), checksum
INT8_STEPS = 127  # int8 holds round(127 delta / eps)
TOLERANCE = 1e-3  # how far, relative to eps, rounding may move a perturbation out of its ball
MAX_ROWS_PER_BLOCK, MAX_BLOCK_BYTES = 4096, 2**24  # where all rows are read
SECTOR_BYTES = 512  # a power cut can separate what lies in two sectors
RESTORE = "restore the folder as it was, or train again in another folder"


@dataclass(frozen=True)
class _Unfinished:
    """The rows that an epoch must write again after a resume, and the tags that the checkpoint has for them."""

    epoch: int
    rows: NDArray[np.bool_]
    tags: RowTags


class PerturbationMemory:
    """Stores one perturbation per sample as delta / eps, rounded on every write.

    Args:
        n: The number of samples.
        shape: The shape of a sample.
        eps: The largest entry of a perturbation, such as "8/255": the radius of the whole ball.
        dtype: int8, fp16 or fp32.
        folder: Where to keep it in mapped files (default: in RAM). Files for the same samples are opened again.
        chunk_bytes: The size of a mapped file.
        existing: Whether the files must exist already, as on a resume.
    Raises:
        InputError: The disk has too little space; the folder was made for other samples, is damaged or has links.
    Example:
        >>> memory = PerturbationMemory(n=100, shape=(1, 8, 8), eps=0.3)
        >>> memory.write(torch.tensor([4, 7]), epoch=0, delta=torch.full((2, 1, 8, 8), 0.3))
        >>> memory.read(torch.tensor([7, 9]), epoch=1).amax((1, 2, 3))
        tensor([0.3000, 0.0000])
    """

    def __init__(
        self,
        n: int,
        shape: tuple[int, ...],
        eps: Number,
        *,
        dtype: str = "int8",
        folder: Path | None = None,
        chunk_bytes: int = 64 * 2**20,
        existing: bool = False,
    ) -> None:
        if n < 1 or min(shape, default=1) < 1:
            raise InputError("memory-empty", n=n, shape=shape)
        eps = parse_number(eps, "eps")
        if not (math.isfinite(eps) and eps > 0):
            raise InputError("memory-eps-range", eps=eps)
        check_dtype(dtype)
        self.n, self.shape, self.eps, self.dtype, self.folder = n, tuple(shape), float(eps), dtype, folder
        self._kind: np.dtype[Any] = np.dtype(DTYPES[dtype]).newbyteorder("<")
        self._values = math.prod(shape)
        self._value_bytes = self._values * int(self._kind.itemsize)
        self._row_bytes = -(-self._value_bytes // 4) * 4 + TAG_BYTES
        header: dict[str, Value] = {"n": n, "shape": list(shape), "eps": self.eps, "dtype": dtype}
        self._seed = crc32(json.dumps(header).encode())  # a row of another memory has another checksum
        self._saved_seed = self._seed  # of the checksums in a `state`
        self._id = b""
        self._maps: list[MappedRows] = []
        self._unfinished: _Unfinished | None = None
        self._rows_per_chunk = n
        self._generations: list[list[Rows]]
        if folder is None:
            self._generations = [[np.zeros((n, self._row_bytes), np.uint8)] for _ in range(2)]
        else:
            rows = max(1, chunk_bytes // self._row_bytes)
            mapped = map_generations(folder, header, n, self._row_bytes, rows, existing=existing)
            self._id, self._rows_per_chunk = mapped.id, mapped.rows_per_chunk
            self._seed = crc32(mapped.id, self._seed)
            self._maps = mapped.files[0] + mapped.files[1]
            self._generations = [[np.asarray(chunk) for chunk in generation] for generation in mapped.files]

    @property
    def bytes_per_value(self) -> float:
        """Return the bytes per value and generation, tags included."""
        return self._row_bytes / self._values

    def __repr__(self) -> str:
        place = "in RAM" if self.folder is None else f"in {self.folder}"
        return f"PerturbationMemory({self.n} of shape {self.shape}, eps {self.eps:g}, {self.dtype}, {place})"

    @property
    def nbytes(self) -> int:
        """Return the bytes of both generations."""
        return 2 * self.n * self._row_bytes

    def read(self, index: Tensor, epoch: int) -> Tensor:
        """Return the newest perturbations written before `epoch`, as float32 on the CPU; 0 for samples never written.

        Args:
            index: The numbers of the samples.
            epoch: The current epoch, from 0.
        """
        where = self._check_index(index)
        _check_epoch(epoch)
        slot = (epoch - 1) % 2
        rows = self._gather(slot, where)
        others = self._tags(rows)[:, 1] != epoch  # not from epoch - 1
        self._check_rows(rows, where, slot)
        if others.any():
            rows[others] = self._find_newest(rows[others], where[others], slot, epoch)
        return self._decode(rows)

    def write(self, index: Tensor, epoch: int, delta: Tensor) -> None:
        """Store perturbations of `epoch`, rounded; those of the epoch before stay as they are.

        Args:
            index: The numbers of the samples, each once.
            epoch: The current epoch, from 0.
            delta: Their perturbations.
        Raises:
            InputError: A perturbation is NaN, infinite or larger than eps; nothing is stored.
        """
        where = self._check_index(index)
        _check_epoch(epoch)
        if len(np.unique(where)) < len(where):
            twice = int(np.flatnonzero(np.bincount(where) > 1)[0])
            raise InputError("memory-index-twice", sample=twice)
        if delta.shape != (len(where), *self.shape):
            raise InputError("memory-delta-shape", shape=tuple(delta.shape), wanted=(len(where), *self.shape))
        rows = self._encode(delta.detach().to("cpu", torch.float32).reshape(-1, self._values).numpy(), where)
        self._tag(rows, where, epoch)
        self._scatter(epoch % 2, where, rows)
        if self._unfinished is not None:
            self._unfinished.rows[where] = False

    def clear(self) -> None:
        """Set all perturbations to zero, as in a new memory."""
        for generation in self._generations:
            for chunk in generation:
                if chunk.any():
                    chunk[:] = 0

    def state(self, epoch: int) -> dict[str, Tensor]:
        """Return the newest perturbation of each sample up to `epoch`, for a checkpoint inside or before it."""
        values = np.zeros((self.n, self._values), self._kind)
        tags = np.zeros((self.n, 2), np.int64)
        for where in self._blocks():
            rows = self._gather(epoch % 2, where)
            others = self._tags(rows)[:, 1] != epoch + 1
            self._check_rows(rows, where, epoch % 2)
            rows[others] = self._find_newest(rows[others], where[others], epoch % 2, epoch + 1)
            values[where] = self._stored(rows)
            tags[where, 0] = self._tags(rows)[:, 1].astype(np.int64) - 1
            tags[where, 1] = self._tags(rows)[:, 2]
            if self._seed != self._saved_seed:  # without the id: any memory can load it
                tags[where, 1] = self._checksums(rows, self._saved_seed) * (tags[where, 0] >= 0)
        return {
            "values": torch.from_numpy(values.astype(self._kind.newbyteorder("="), copy=False)).view(-1, *self.shape),
            "tags": torch.from_numpy(tags),  # epoch (-1: never written) and checksum
            "eps": torch.tensor(self.eps, dtype=torch.float64),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state`; one that does not fit changes nothing."""
        values, tags = self._check_state(state)
        rows, samples, slots = np.zeros((self.n, self._row_bytes), np.uint8), np.arange(self.n), tags[:, 0] % 2
        self._stored(rows)[:] = values
        self._tags(rows)[:] = np.column_stack([samples, tags[:, 0] + 1, tags[:, 1]]) * (tags[:, :1] >= 0)
        for slot in range(2):
            self._check_rows(rows[slots == slot], samples[slots == slot], slot, self._saved_seed)
        if self._seed != self._saved_seed:
            self._tags(rows)[:, 2] = self._checksums(rows) * (tags[:, 0] >= 0)
        for slot in range(2):
            self._scatter(slot, samples, rows * (slots == slot)[:, None])

    def file_state(self, epoch: int) -> dict[str, Tensor]:
        """Return what `check_files` needs: the id of the folder and the tags of all rows, 16 bytes per sample."""
        tags = np.stack([self._all_tags(slot) for slot in range(2)])
        if self._unfinished is not None and self._unfinished.epoch == epoch:  # not written again yet
            rows = self._unfinished.rows
            tags[epoch % 2, rows] = self._unfinished.tags[rows]
        return {
            "id": torch.from_numpy(np.frombuffer(self._id, np.uint8).copy()),
            "tags": torch.from_numpy(tags.view(np.int32)),  # generation, sample, (epoch + 1, checksum)
        }

    def check_files(self, state: Mapping[str, Tensor], epoch: int) -> None:
        """Raise InputError unless the files hold what they held when `file_state` gave this state in `epoch`.

        Every row must be as it was. Only rows that the epoch had not written yet may have been written since: the
        epoch writes them again. A crash may have torn these.
        """
        saved = self._check_file_state(state)
        before, now = saved[(epoch - 1) % 2], saved[epoch % 2]
        open_rows = now[:, 0] <= before[:, 0]  # else this row is the newest of its sample
        for where in self._blocks():
            self._check_unchanged(where, (epoch - 1) % 2, before[where], epoch)
        for where in self._blocks():
            self._check_unchanged(where[~open_rows[where]], epoch % 2, now[where][~open_rows[where]], epoch)
            self._check_open(where[open_rows[where]], now[where][open_rows[where]], epoch)
        self._unfinished = _Unfinished(epoch, open_rows, now)

    def check_available(self, epoch: int) -> None:
        """Raise InputError if a later epoch has overwritten perturbations that `epoch` needs."""
        for slot in range(2):
            for where in self._blocks():
                last = self._tags(self._gather(slot, where))[:, 1].astype(np.int64) - 1
                if (last > epoch).any():
                    self._refuse_late(int(where[last > epoch][0]), int(last[last > epoch][0]), epoch)

    def histogram(self, epoch: int, norm: str, bins: int) -> list[float]:
        """Return the shares of stored entries (l2: of perturbations) by size / eps, in bins from 0 to 1."""
        counts = torch.zeros(bins, dtype=torch.float64)
        for rows in torch.arange(self.n).split(max(1, 2**22 // self._values)):
            delta = self.read(rows, epoch)
            sizes = delta.abs() if norm == "linf" else torch.linalg.vector_norm(delta.flatten(1), dim=1)
            counts += torch.histc(sizes.div_(self.eps).clamp_(max=1), bins, 0, 1)
        shares: list[float] = (counts / counts.sum()).tolist()
        return shares

    def flush(self) -> None:
        """Write mapped files to the disk."""
        try:
            for chunk in self._maps:
                chunk.flush()
        except OSError as error:
            raise InputError("memory-flush", folder=self.folder, reason=error.strerror or error) from error

    def _check_index(self, index: Tensor) -> Index:
        where: Index = index.detach().cpu().numpy()
        if where.ndim != 1 or where.dtype != np.int64:
            raise InputError("memory-index-type", dtype=str(index.dtype), shape=tuple(index.shape))
        if len(where) and not 0 <= where.min() <= where.max() < self.n:
            wrong = int(where[(where < 0) | (where >= self.n)][0])
            raise InputError("memory-index-range", sample=wrong, last=self.n - 1)
        return where

    def _stored(self, rows: Rows) -> NDArray[Any]:
        """Return the values of rows, as a view."""
        return rows[:, : self._value_bytes].view(self._kind)

    def _tags(self, rows: Rows) -> RowTags:
        """Return sample, epoch + 1 and checksum of rows, as a view."""
        return rows[:, -TAG_BYTES:].view("<u4")

    def _checksums(self, rows: Rows, seed: int | None = None) -> RowTags:
        """Compute the checksums of rows, over everything but the checksum itself."""
        data, size, seed = memoryview(rows.reshape(-1).data), self._row_bytes, self._seed if seed is None else seed
        return np.array([crc32(data[i : i + size - 4], seed) for i in range(0, rows.size, size)], np.uint32)

    def _encode(self, delta: NDArray[np.float32], where: Index) -> Rows:
        """Return rows of rounded delta / eps, without tags."""
        limit = self.eps * (1 + TOLERANCE)
        if not np.abs(delta).max(initial=0) <= limit:  # nan too
            _refuse_values(delta, where, limit)
        rows = np.zeros((len(where), self._row_bytes), np.uint8)
        if self.dtype == "int8":
            scaled = delta * np.float32(INT8_STEPS / self.eps)
            self._stored(rows)[:] = np.rint(scaled, out=scaled)  # within 127, since TOLERANCE is below 1/254
        else:
            self._stored(rows)[:] = (delta / np.float32(self.eps)).clip(-1, 1)
        return rows

    def _decode(self, rows: Rows) -> Tensor:
        values = self._stored(rows).astype(np.float32)
        if self.dtype == "int8":
            values /= INT8_STEPS  # first, so that 127 gives eps itself
        values *= np.float32(self.eps)
        return torch.from_numpy(values).view(len(rows), *self.shape)

    def _tag(self, rows: Rows, where: Index, epoch: int) -> None:
        tags = self._tags(rows)
        tags[:, 0] = where
        tags[:, 1] = epoch + 1
        tags[:, 2] = self._checksums(rows)

    def _check_rows(self, rows: Rows, where: Index, slot: int, seed: int | None = None) -> None:
        """Raise InputError unless the rows are exactly what was written for these samples."""
        tags, sums = self._tags(rows), self._checksums(rows, seed)
        good = (tags[:, 2] == sums) & (tags[:, 0] == where) & (tags[:, 1] % 2 != slot)  # epoch % 2 == slot
        if not good.all():
            good |= (tags[:, 1] == 0) & ~rows.any(axis=1)  # never written
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            self._refuse_row(rows[i : i + 1], int(where[i]), slot, int(sums[i]))

    def _find_newest(self, rows: Rows, where: Index, slot: int, epoch: int) -> Rows:
        """Return the newest rows before `epoch`, given the rows of `slot`, none of which is of epoch - 1."""
        mine = self._tags(rows)[:, 1].astype(np.int64) - 1
        if (mine >= epoch).any():
            self._refuse_late(int(where[mine >= epoch][0]), int(mine[mine >= epoch][0]), epoch)
        if epoch > 0:  # else nothing is older; a row that a crash damaged in epoch 0 is not needed
            others = self._gather(1 - slot, where)
            self._check_rows(others, where, 1 - slot)
            theirs = self._tags(others)[:, 1].astype(np.int64) - 1
            newer = (theirs > mine) & (theirs < epoch)
            rows[newer] = others[newer]
        return rows

    def _gather(self, slot: int, where: Index) -> Rows:
        chunks = self._generations[slot]
        if len(chunks) == 1:
            return chunks[0].take(where, axis=0)
        rows = np.empty((len(where), self._row_bytes), np.uint8)
        chunk_of, place = np.divmod(where, self._rows_per_chunk)
        for c in np.unique(chunk_of):
            rows[chunk_of == c] = chunks[c][place[chunk_of == c]]
        return rows

    def _scatter(self, slot: int, where: Index, rows: Rows) -> None:
        chunks = self._generations[slot]
        if len(chunks) == 1:
            chunks[0][where] = rows
            return
        chunk_of, place = np.divmod(where, self._rows_per_chunk)
        for c in np.unique(chunk_of):
            chunks[c][place[chunk_of == c]] = rows[chunk_of == c]

    def _blocks(self) -> list[Index]:
        size = max(1, min(MAX_ROWS_PER_BLOCK, MAX_BLOCK_BYTES // self._row_bytes))
        return [np.arange(first, min(first + size, self.n)) for first in range(0, self.n, size)]

    def _check_state(self, state: Mapping[str, Tensor]) -> tuple[NDArray[Any], Index]:
        if missing := {"values", "tags", "eps"} - state.keys():
            raise InputError("memory-state-incomplete", names=", ".join(sorted(missing)))
        values, tags, eps = state["values"].cpu().numpy(), state["tags"].cpu().numpy(), float(state["eps"])
        found = (values.shape, values.dtype.newbyteorder("<"), tags.shape, tags.dtype, eps)
        if found != ((self.n, *self.shape), self._kind, (self.n, 2), np.dtype(np.int64), self.eps):
            raise InputError(
                "memory-state-other",
                dtype=self.dtype,
                shape=(self.n, *self.shape),
                eps=self.eps,
                found_dtype=values.dtype,
                found_shape=values.shape,
                found_eps=eps,
            )
        wrong = (tags < (-1, 0)).any(axis=1) | (tags >= (2**32 - 1, 2**32)).any(axis=1)
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise InputError("memory-state-damaged", sample=i, tag=tags[i].tolist())
        return values.reshape(self.n, -1), tags

    # ---- files on a resume

    def _all_tags(self, slot: int) -> RowTags:
        """Return epoch + 1 and checksum of all rows."""
        return np.concatenate([self._tags(chunk)[:, 1:] for chunk in self._generations[slot]]).astype(np.uint32)

    def _check_file_state(self, state: Mapping[str, Tensor]) -> RowTags:
        """Return the tags of a `file_state`."""
        if missing := {"id", "tags"} - state.keys():
            raise InputError("memory-files-state", folder=self.folder, names=", ".join(sorted(missing)))
        identity, tags = state["id"].cpu().numpy(), state["tags"].cpu().numpy()
        wanted = ((ID_BYTES,), np.dtype(np.uint8), (2, self.n, 2), np.dtype(np.int32))
        if (identity.shape, identity.dtype, tags.shape, tags.dtype) != wanted:
            raise InputError("memory-files-state", folder=self.folder, names=f"tags of {self.n} samples")
        if identity.tobytes() != self._id:
            found, saved = self._id.hex(), identity.tobytes().hex()
            raise InputError("memory-files-other", folder=self.folder, found=found, wanted=saved)
        return np.ascontiguousarray(tags).view(np.uint32)

    def _check_unchanged(self, where: Index, slot: int, saved: RowTags, epoch: int) -> None:
        """Raise InputError unless rows have the saved tags, and the content that these tags are for."""
        rows = self._gather(slot, where)
        good = (self._tags(rows)[:, 1:] == saved).all(axis=1)
        good &= np.where(saved[:, 0] > 0, self._checksums(rows) == saved[:, 1], ~rows.any(axis=1))
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            self._refuse_changed(rows[i : i + 1], int(where[i]), slot, saved[i], epoch)

    def _check_open(self, where: Index, saved: RowTags, epoch: int) -> None:
        """Raise InputError unless rows that the epoch has to write have the saved tags, or were written in the epoch.

        Their values do not matter. A crash while they were written can have left some old and some new bytes, also of
        a tag if its epoch and its checksum lie in two sectors.
        """
        rows = self._gather(epoch % 2, where)
        tags = self._tags(rows)[:, 1:]
        split = ((where % self._rows_per_chunk + 1) * self._row_bytes - 4) % SECTOR_BYTES == 0
        good = (tags[:, 0] == epoch + 1) | ((tags[:, 0] == saved[:, 0]) & ((tags[:, 1] == saved[:, 1]) | split))
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            self._refuse_changed(rows[i : i + 1], int(where[i]), epoch % 2, saved[i], epoch)

    def _refuse_changed(self, row: Rows, sample: int, slot: int, saved: RowTags, epoch: int) -> NoReturn:
        """Raise the error of a row that is not as the checkpoint has it."""
        (wanted, checksum), (_, later, found) = saved.tolist(), self._tags(row)[0].tolist()
        computed, retagged = int(self._checksums(row)[0]), row.copy()
        self._tags(retagged)[:, 1] = wanted
        if later != wanted and wanted and checksum == found == int(self._checksums(retagged)[0]):
            damage, what = "epoch-tag", f"has a damaged epoch tag: {_epoch_of(later)} instead of {_epoch_of(wanted)}"
        elif not row.any():
            damage, what = "zero", f"is zero but was written in {_epoch_of(wanted)}"
        elif later > epoch + 1 and later % 2 != slot:
            self._refuse_late(sample, later - 1, epoch)
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
        owner, later, found = self._tags(row)[0].tolist()
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

    def _refuse_late(self, sample: int, last: int, epoch: int) -> NoReturn:
        raise InputError("memory-overwritten", sample=sample, epoch=epoch, last=last)


def check_dtype(dtype: str) -> None:
    """Raise UnknownNameError unless the memory has this number format."""
    if dtype not in DTYPES:
        raise UnknownNameError("dtype of the memory", dtype, list(DTYPES))


def _epoch_of(tag: int) -> str:
    return f"epoch {tag - 1}" if tag else "no epoch"


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch < 2**32 - 1:
        raise InputError("memory-epoch", epoch=epoch)


def _refuse_values(delta: NDArray[np.float32], where: Index, limit: float) -> None:
    finite = np.isfinite(delta).all(axis=1)
    if not finite.all():
        i = int(where[~finite][0])
        raise NotFiniteError("memory-not-finite", sample=i)
    size = np.abs(delta).max(axis=1)
    i = int(np.flatnonzero(size > limit)[0])
    raise InputError("memory-delta-range", sample=int(where[i]), most=limit / (1 + TOLERANCE), size=size[i])
