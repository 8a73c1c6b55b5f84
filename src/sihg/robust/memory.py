"""The perturbation memory: what the ascent found for each sample, kept from one epoch to the next.

It has two generations. In epoch e a sample is read from generation e-1 and written to generation e, so whatever an
interrupted epoch has written is written again, identically, when the epoch is resumed. Every row is guarded by the
sample's number, the epoch and a checksum over both and the values, all checked on reading.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.parse import Number, parse_number
from sihg.store.files import write_text

Rows = NDArray[np.uint8]  # one row a sample: its values, padded to four bytes, then the tag
Index = NDArray[np.int64]

DTYPES: dict[str, Any] = {"int8": np.int8, "fp16": np.float16, "fp32": np.float32}
TAG_BYTES = 12  # three little-endian uint32: sample, epoch + 1 (0: never written), checksum
STEPS = 127  # int8 holds round(127 delta / eps)
SLACK = 1e-3  # how far, relative to eps, rounding may carry a perturbation out of its ball
BLOCK = 4096  # rows handled at once where all are


class PerturbationMemory:
    """Perturbations of `n` samples within `eps`, as delta/eps in int8, fp16 or fp32; in RAM, or in files in `folder`.

    >>> memory = PerturbationMemory(n=100, shape=(1, 8, 8), eps=0.3)
    >>> memory.write(torch.tensor([4, 7]), epoch=0, delta=torch.full((2, 1, 8, 8), 0.3))
    >>> memory.read(torch.tensor([7, 9]), epoch=1).amax((1, 2, 3))
    tensor([0.3000, 0.0000])

    Values are rounded to `dtype` on every write. An existing `folder` is opened and must have been made for the same
    samples; otherwise its space is reserved at once, since a full disk under a memory map kills the process.
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
    ) -> None:
        if n < 1 or min(shape, default=1) < 1:
            raise InputError(f"the memory needs samples and values, got n = {n} of shape {shape}: look at the data set")
        eps = parse_number(eps, "eps")
        if not (math.isfinite(eps) and eps > 0):
            raise InputError(f"eps must be finite and > 0, got {eps}: it is the radius of the whole ball")
        check_dtype(dtype)
        self.n, self.shape, self.eps, self.dtype, self.folder = n, tuple(shape), float(eps), dtype, folder
        self._kind: np.dtype[Any] = np.dtype(DTYPES[dtype]).newbyteorder("<")
        self._values = math.prod(shape)
        self._value_bytes = self._values * int(self._kind.itemsize)
        self._row_bytes = -(-self._value_bytes // 4) * 4 + TAG_BYTES
        about = {"n": n, "shape": list(shape), "eps": self.eps, "dtype": dtype}
        self._seed = crc32(json.dumps(about).encode())  # a row of another memory never passes for ours
        self._maps: list[np.memmap[Any, np.dtype[np.uint8]]] = []
        if folder is None:
            self._rows_a_chunk = n
            self._generations: list[list[Rows]] = [[np.zeros((n, self._row_bytes), np.uint8)] for _ in range(2)]
        else:
            self._rows_a_chunk, self._generations = self._open(folder, about, max(1, chunk_bytes // self._row_bytes))

    @property
    def bytes_per_value(self) -> float:
        """Bytes for one value in one generation, tags included."""
        return self._row_bytes / self._values

    @property
    def nbytes(self) -> int:
        """Bytes of both generations."""
        return 2 * self.n * self._row_bytes

    def read(self, index: Tensor, epoch: int) -> Tensor:
        """The newest perturbations written before `epoch`, as float32 on the CPU; 0 for samples never written."""
        where = self._checked_index(index)
        _check_epoch(epoch)
        slot = (epoch - 1) % 2
        rows = self._gather(slot, where)
        others = self._tags(rows)[:, 1] != epoch  # not from epoch - 1
        self._check(rows, where, slot)
        if others.any():
            rows[others] = self._newest(rows[others], where[others], slot, epoch)
        return self._decoded(rows)

    def write(self, index: Tensor, epoch: int, delta: Tensor) -> None:
        """Keep perturbations of `epoch`, rounded; the ones of the epoch before stay as they are."""
        where = self._checked_index(index)
        _check_epoch(epoch)
        if len(np.unique(where)) < len(where):
            twice = int(np.flatnonzero(np.bincount(where) > 1)[0])
            raise InputError(f"sample {twice} is written twice in one call: write each sample once")
        if delta.shape != (len(where), *self.shape):
            raise InputError(
                f"perturbations have shape {tuple(delta.shape)}, {len(where)} samples need "
                f"{(len(where), *self.shape)}: give one perturbation a sample"
            )
        rows = self._encoded(delta.detach().to("cpu", torch.float32).reshape(-1, self._values).numpy(), where)
        self._tag(rows, where, epoch)
        self._scatter(epoch % 2, where, rows)

    def state(self, epoch: int) -> dict[str, Tensor]:
        """One merged array for a checkpoint inside or after `epoch`: of each sample the newest up to that epoch."""
        values = np.zeros((self.n, self._values), self._kind)
        tags = np.zeros((self.n, 2), np.int64)
        for where in self._blocks():
            rows = self._gather(epoch % 2, where)
            others = self._tags(rows)[:, 1] != epoch + 1
            self._check(rows, where, epoch % 2)
            rows[others] = self._newest(rows[others], where[others], epoch % 2, epoch + 1)
            values[where] = self._stored(rows)
            tags[where, 0] = self._tags(rows)[:, 1].astype(np.int64) - 1
            tags[where, 1] = self._tags(rows)[:, 2]
        return {
            "values": torch.from_numpy(values.astype(self._kind.newbyteorder("="), copy=False)).view(-1, *self.shape),
            "tags": torch.from_numpy(tags),  # epoch (-1: never written) and checksum
            "eps": torch.tensor(self.eps, dtype=torch.float64),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` gave; one that does not fit changes nothing."""
        values, tags = self._checked_state(state)
        rows, samples, slots = np.zeros((self.n, self._row_bytes), np.uint8), np.arange(self.n), tags[:, 0] % 2
        self._stored(rows)[:] = values
        self._tags(rows)[:] = np.column_stack([samples, tags[:, 0] + 1, tags[:, 1]]) * (tags[:, :1] >= 0)
        for slot in range(2):
            self._check(rows[slots == slot], samples[slots == slot], slot)
        for slot in range(2):
            self._scatter(slot, samples, rows * (slots == slot)[:, None])

    def check_available(self, epoch: int) -> None:
        """Refuse to continue in `epoch` when a later epoch has already written over what it needs."""
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
        """Bring what was written to the disk, where the memory lives in files."""
        for chunk in self._maps:
            chunk.flush()

    def _checked_index(self, index: Tensor) -> Index:
        where: Index = index.detach().cpu().numpy()
        if where.ndim != 1 or where.dtype != np.int64:
            raise InputError(
                f"the index of samples is {index.dtype} of shape {tuple(index.shape)}: give a list of int64 numbers"
            )
        if len(where) and not 0 <= where.min() <= where.max() < self.n:
            wrong = int(where[(where < 0) | (where >= self.n)][0])
            raise InputError(
                f"sample {wrong} is not in the memory, which has samples 0 to {self.n - 1}: check the index"
            )
        return where

    def _stored(self, rows: Rows) -> NDArray[Any]:
        """The values in some rows, a view."""
        return rows[:, : self._value_bytes].view(self._kind)

    def _tags(self, rows: Rows) -> NDArray[np.uint32]:
        """Sample, epoch + 1 and checksum of some rows, a view."""
        return rows[:, -TAG_BYTES:].view("<u4")

    def _sums(self, rows: Rows) -> NDArray[np.uint32]:
        """The checksums that the rows should have, over all but the checksum itself."""
        data, size, seed = memoryview(rows.reshape(-1).data), self._row_bytes, self._seed
        return np.array([crc32(data[i : i + size - 4], seed) for i in range(0, rows.size, size)], np.uint32)

    def _encoded(self, delta: NDArray[np.float32], where: Index) -> Rows:
        """Rows with rounded delta / eps and without tags."""
        limit = self.eps * (1 + SLACK)
        if not np.abs(delta).max(initial=0) <= limit:  # nan too
            _refuse_values(delta, where, limit)
        rows = np.zeros((len(where), self._row_bytes), np.uint8)
        if self.dtype == "int8":
            scaled = delta * np.float32(STEPS / self.eps)
            self._stored(rows)[:] = np.rint(scaled, out=scaled)  # within 127, since SLACK is below 1/254
        else:
            self._stored(rows)[:] = (delta / np.float32(self.eps)).clip(-1, 1)
        return rows

    def _decoded(self, rows: Rows) -> Tensor:
        values = self._stored(rows).astype(np.float32)
        if self.dtype == "int8":
            values /= STEPS  # first, so that 127 gives eps itself
        values *= np.float32(self.eps)
        return torch.from_numpy(values).view(len(rows), *self.shape)

    def _tag(self, rows: Rows, where: Index, epoch: int) -> None:
        tags = self._tags(rows)
        tags[:, 0] = where
        tags[:, 1] = epoch + 1
        tags[:, 2] = self._sums(rows)

    def _check(self, rows: Rows, where: Index, slot: int) -> None:
        """Refuse rows that are not, to the bit, what was written for these samples."""
        tags = self._tags(rows)
        good = (tags[:, 2] == self._sums(rows)) & (tags[:, 0] == where) & (tags[:, 1] % 2 != slot)  # epoch % 2 == slot
        if not good.all():
            good |= (tags[:, 1] == 0) & ~rows.any(axis=1)  # never written
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            self._refuse_row(rows[i : i + 1], int(where[i]), slot)

    def _newest(self, rows: Rows, where: Index, slot: int, epoch: int) -> Rows:
        """The newest rows before `epoch`, given those of `slot`, where epoch - 1 would be and is not."""
        mine = self._tags(rows)[:, 1].astype(np.int64) - 1
        if (mine >= epoch).any():
            self._refuse_late(int(where[mine >= epoch][0]), int(mine[mine >= epoch][0]), epoch)
        if epoch > 0:  # else nothing is older, and a row that a crash tore in epoch 0 is none of our business
            others = self._gather(1 - slot, where)
            self._check(others, where, 1 - slot)
            theirs = self._tags(others)[:, 1].astype(np.int64) - 1
            newer = (theirs > mine) & (theirs < epoch)
            rows[newer] = others[newer]
        return rows

    def _gather(self, slot: int, where: Index) -> Rows:
        chunks = self._generations[slot]
        if len(chunks) == 1:
            return chunks[0].take(where, axis=0)
        rows = np.empty((len(where), self._row_bytes), np.uint8)
        chunk_of, place = np.divmod(where, self._rows_a_chunk)
        for c in np.unique(chunk_of):
            rows[chunk_of == c] = chunks[c][place[chunk_of == c]]
        return rows

    def _scatter(self, slot: int, where: Index, rows: Rows) -> None:
        chunks = self._generations[slot]
        if len(chunks) == 1:
            chunks[0][where] = rows
            return
        chunk_of, place = np.divmod(where, self._rows_a_chunk)
        for c in np.unique(chunk_of):
            chunks[c][place[chunk_of == c]] = rows[chunk_of == c]

    def _blocks(self) -> list[Index]:
        return [np.arange(first, min(first + BLOCK, self.n)) for first in range(0, self.n, BLOCK)]

    def _checked_state(self, state: Mapping[str, Tensor]) -> tuple[NDArray[Any], Index]:
        if missing := {"values", "tags", "eps"} - state.keys():
            raise InputError(f"the saved memory has no {', '.join(sorted(missing))}: load what `state` gave")
        values, tags, eps = state["values"].cpu().numpy(), state["tags"].cpu().numpy(), float(state["eps"])
        found = (values.shape, values.dtype.newbyteorder("<"), tags.shape, tags.dtype, eps)
        if found != ((self.n, *self.shape), self._kind, (self.n, 2), np.dtype(np.int64), self.eps):
            raise InputError(
                f"the saved memory holds {values.dtype} of shape {values.shape} within eps {eps}, here is {self.dtype} "
                f"of shape {(self.n, *self.shape)} within eps {self.eps}: resume with the settings it was saved with"
            )
        wrong = (tags < (-1, 0)).any(axis=1) | (tags >= (2**32 - 1, 2**32)).any(axis=1)
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"the saved tag of sample {i} is {tags[i].tolist()}: damaged, resume from another checkpoint"
            )
        return values.reshape(self.n, -1), tags

    def _refuse_row(self, row: Rows, sample: int, slot: int) -> None:
        owner, later, found = self._tags(row)[0].tolist()
        expected = int(self._sums(row)[0])
        if later == 0:
            what = "was never written but is not zero"
        elif found != expected:
            what = f"has the checksum {found:08x} instead of {expected:08x}"
        elif owner != sample:
            what = f"holds the row of sample {owner}"
        else:
            what = f"of generation {slot} holds a row of epoch {later - 1}, which belongs to the other"
        where = "" if self.folder is None else f" in {self.folder}"
        remedy = "resume from the last checkpoint" if self.folder is None else "restore the folder or train again"
        raise InputError(f"the perturbation of sample {sample}{where} {what}: it was damaged, {remedy}")

    def _refuse_late(self, sample: int, last: int, epoch: int) -> None:
        raise InputError(
            f"the perturbation that sample {sample} needs in epoch {epoch} was overwritten in epoch {last}: "
            "resume from a newer checkpoint or train again"
        )

    def _open(self, folder: Path, about: dict[str, Any], rows_a_chunk: int) -> tuple[int, list[list[Rows]]]:
        """Map the files of a folder, which is made where there is none."""
        manifest = folder / "memory.json"
        if manifest.exists():
            rows_a_chunk = _checked_manifest(manifest, about)
        starts = range(0, self.n, rows_a_chunk)
        sizes = [min(rows_a_chunk, self.n - first) * self._row_bytes for first in starts]
        files = [[(folder / f"generation{g}-{c:04d}.bin", size) for c, size in enumerate(sizes)] for g in range(2)]
        if not manifest.exists():
            _reserve(folder, files[0] + files[1])
            write_text(manifest, json.dumps({**about, "rows_a_chunk": rows_a_chunk}))  # last: the files are whole
        self._maps = [_mapped(path, size, self._row_bytes) for path, size in files[0] + files[1]]
        plain = [np.asarray(chunk) for chunk in self._maps]
        return rows_a_chunk, [plain[: len(sizes)], plain[len(sizes) :]]


def check_dtype(dtype: str) -> None:
    """Raise UnknownNameError unless the memory has this number format."""
    if dtype not in DTYPES:
        raise UnknownNameError("dtype of the memory", dtype, list(DTYPES))


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch < 2**32 - 1:
        raise InputError(f"epoch must be from 0 to 2^32 - 2, got {epoch}: the first one is 0")


def _refuse_values(delta: NDArray[np.float32], where: Index, limit: float) -> None:
    finite = np.isfinite(delta).all(axis=1)
    if not finite.all():
        i = int(where[~finite][0])
        raise NotFiniteError(
            f"not finite: sample {i} has nan or inf in its perturbation, none is kept: lower the step size"
        )
    size = np.abs(delta).max(axis=1)
    i = int(np.flatnonzero(size > limit)[0])
    raise InputError(
        f"the perturbation of sample {where[i]} reaches {size[i]:.6g}, beyond eps = {limit / (1 + SLACK):.6g}, none is "
        "kept: project it, or make the memory for the largest eps of the run"
    )


def _checked_manifest(manifest: Path, about: dict[str, Any]) -> int:
    """Rows a file, from the manifest of a folder that was made for the same samples."""
    try:
        saved = json.loads(manifest.read_text(encoding="utf-8"))
        rows_a_chunk = int(saved.pop("rows_a_chunk"))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"{manifest} cannot be read ({error!r}): restore it, or delete its folder") from error
    wrong = [
        f"{key} = {saved.get(key)} where {value} is needed" for key, value in about.items() if saved.get(key) != value
    ]
    if wrong:
        raise InputError(
            f"the perturbation memory in {manifest.parent} has {', '.join(wrong)}: use the same settings, or choose "
            "another folder"
        )
    if rows_a_chunk < 1:
        raise InputError(f"{manifest} has rows_a_chunk = {rows_a_chunk}: restore it, or delete its folder")
    return rows_a_chunk


def _reserve(folder: Path, files: list[tuple[Path, int]]) -> None:
    """Make the files with all their space, or none of them."""
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
            f"cannot make the perturbation memory in {folder} ({error.strerror or error}), which needs {needed:,} "
            f"bytes where {free:,} are free: free the rest, choose another place, or keep it in RAM"
        ) from error


def _reserve_file(path: Path, size: int) -> None:
    """Give a file its whole space without changing what is in it."""
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


def _mapped(path: Path, size: int, row_bytes: int) -> np.memmap[Any, np.dtype[np.uint8]]:
    try:
        if path.stat().st_size != size:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes, the perturbation memory needs {size:,}: restore it, or "
                "delete its folder and train again"
            )
        return np.memmap(path, np.uint8, "r+", shape=(size // row_bytes, row_bytes))
    except OSError as error:
        raise InputError(
            f"{path} of the perturbation memory cannot be opened ({error.strerror or error}): restore it, or delete "
            "its folder and train again"
        ) from error
