"""The perturbation memory: the perturbation of each sample, kept from one epoch to the next.

It has two generations. In epoch e a sample is read from generation e-1 and written to generation e. So an interrupted
epoch can be resumed: what it had written is written again, identically. Every row holds the number of its sample, the
epoch, and a checksum over both and the values. All three are checked on reading.

A memory in RAM is saved in checkpoints (`state`). A memory in files stays where it is: a checkpoint has the id of its
folder and the tags of all rows (`file_state`), by which `check_files` recognises every row that is not as it was.

With several processes, process r of W owns the samples i = r mod W and keeps no others. What is saved is saved by lane:
lane l of L holds the samples i = l mod L, so that any W that divides L can load it.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.parse import ORDERS, Number, parse_number
from sihg.robust.memory._behind import Behind
from sihg.robust.memory._device_rows import DeviceRows
from sihg.robust.memory._index_checks import check_delta, check_epoch, check_index
from sihg.robust.memory._resume_checks import Unfinished, check_file_state, check_open, check_state, check_unchanged
from sihg.robust.memory._row_format import Index, RowFormat, Rows, check_dtype, refuse_late
from sihg.robust.memory._shards import Shards
from sihg.robust.waits import download, refuse_if, upload
from sihg.store.memory_files import MAX_SHARDS, count_shards, is_shard_count, map_generations

MAX_ROWS_PER_BLOCK, MAX_BLOCK_BYTES = 4096, 2**24  # where all rows are read


class PerturbationMemory:
    """Stores one perturbation per sample as delta / eps, rounded on every write.

    Args:
        n: The number of samples, of all processes together.
        shape: The shape of a sample.
        eps: The largest entry of a perturbation, such as "8/255": the radius of the whole ball.
        dtype: int8, fp16 or fp32.
        folder: Where to keep it in mapped files (default: in RAM). Files for the same samples are opened again.
        chunk_bytes: The size of a mapped file that is not exceeded, up to 64 files per generation.
        existing: Whether the files must exist already, as on a resume.
        rank, world_size: The number of this process, and of how many: it owns the samples i = rank mod world_size.
            world_size divides 64. Process 0 makes the files, before the others open them.
        shards: The least number of mapped files per generation: the most processes that can share them.
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
        rank: int = 0,
        world_size: int = 1,
        shards: int = 1,
    ) -> None:
        if n < 1 or min(shape, default=1) < 1:
            raise InputError("memory-empty", n=n, shape=shape)
        eps = parse_number(eps, "eps")
        if not (math.isfinite(eps) and eps > 0):
            raise InputError("memory-eps-range", eps=eps)
        check_dtype(dtype)
        if not (is_shard_count(world_size) and 0 <= rank < world_size):
            raise InputError("process-rank", rank=rank, world_size=world_size, most=MAX_SHARDS)
        if not is_shard_count(shards):
            raise InputError("memory-shards", shards=shards, most=MAX_SHARDS)
        self.n, self.shape, self.eps, self.dtype, self.folder = n, tuple(shape), float(eps), dtype, folder
        self.rank, self.world_size = rank, world_size
        self._format = RowFormat(n, self.shape, self.eps, dtype, folder)
        self._id = b""
        self._behind = Behind()
        self._unfinished: Unfinished | None = None
        row_bytes = self._format.row_bytes
        if folder is None:
            self._shards: Shards = Shards.in_ram(n, row_bytes, rank, world_size)
        else:
            new = count_shards(n, row_bytes, chunk_bytes, max(shards, world_size))
            header = self._format.header
            files = map_generations(
                folder, header, n, row_bytes, new, existing=existing, rank=rank, world_size=world_size
            )
            self._id, self._shards = files.id, Shards.mapped(files, row_bytes, folder)
            self._format.identify(files.id)

    @property
    def owned(self) -> int:
        """Return the number of samples that this process owns."""
        return len(range(self.rank, self.n, self.world_size))

    @property
    def bytes_per_value(self) -> float:
        """Return the bytes per value and generation, tags included."""
        return self._format.row_bytes / self._format.values

    @property
    def nbytes(self) -> int:
        """Return the bytes of both generations, of the owned samples."""
        return 2 * self.owned * self._format.row_bytes

    def __repr__(self) -> str:
        place = "in RAM" if self.folder is None else f"in {self.folder}"
        process = f", process {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return f"PerturbationMemory({self.n} of shape {self.shape}, eps {self.eps:g}, {self.dtype}, {place}{process})"

    def to(self, device: torch.device | str) -> "PerturbationMemory":
        """Move a memory in RAM to a device, where it is read and written without waiting for that device.

        Args:
            device: Such as "cuda". A memory in files, and one that is on a device already, stays where it is.
        Returns:
            The memory itself.
        """
        device = torch.device(device)
        if device.type != "cpu" and self.folder is None and not isinstance(self._shards, DeviceRows):
            self._shards = DeviceRows(self._format, self._shards, self._lane_rows(), device)
        return self

    def read(self, index: Tensor, epoch: int) -> Tensor:
        """Return the newest perturbations written before `epoch`, as float32; 0 for samples never written.

        They are on the CPU, or on the device that the memory is on.

        Args:
            index: The numbers of the samples.
            epoch: The current epoch, from 0.
        Raises:
            InputError: A row is damaged, was overwritten, or belongs to another process.
        """
        where = check_index(index, self.n, self.rank, self.world_size)
        check_epoch(epoch)
        ready = self._behind.take(where, epoch)
        if ready is not None:
            return ready
        self._behind.wait()
        return self._read(where, epoch)

    def prefetch(self, index: Tensor, epoch: int) -> None:
        """Start to read rows from the files while the model computes; a `read` of the same rows takes the result.

        A row that is written in between is read again. A memory in RAM has nothing to do.

        Args:
            index: The numbers of the samples, as `read` will have them.
            epoch: The epoch of that `read`.
        """
        if self.folder is not None:
            where = check_index(index, self.n, self.rank, self.world_size).copy()
            check_epoch(epoch)
            self._behind.read(where, epoch, partial(self._read_ahead, where, epoch))

    def write(self, index: Tensor, epoch: int, delta: Tensor) -> None:
        """Store perturbations of `epoch`, rounded; those of the epoch before stay as they are.

        Files are written while the model computes. Whoever reads the rows waits for that; `flush` does too.

        Args:
            index: The numbers of the samples, each once.
            epoch: The current epoch, from 0.
            delta: Their perturbations.
        Raises:
            InputError: A perturbation is NaN, infinite or larger than eps; nothing is stored.
        """
        where = check_index(index, self.n, self.rank, self.world_size)
        check_epoch(epoch)
        check_delta(where, delta, self.shape)
        values = delta.detach().to(torch.float32).reshape(-1, self._format.values)
        if isinstance(self._shards, DeviceRows) or (self.folder is not None and values.device.type != "cpu"):
            self._write_from_device(where, epoch, values)
        else:
            self._write(where, epoch, values.cpu())
        if self._unfinished is not None:
            self._unfinished.rows[where // self.world_size] = False

    def _write(self, where: Index, epoch: int, delta: Tensor) -> None:
        """Round now, a copy, since the caller may change delta; write to files later."""
        rows = self._format.encode(delta.numpy(), where)
        if self.folder is None:
            self._store(where, epoch, rows)
        else:
            where = where.copy()
            self._behind.write(where, partial(self._store, where, epoch, rows))

    def _write_from_device(self, where: Index, epoch: int, delta: Tensor) -> None:
        """Write perturbations of a device without waiting for it: there, or to files once they have been copied."""
        where = where.copy()
        bad = ~(delta.abs().amax() <= self._format.limit)  # nan too
        refuse_if(bad, lambda: self._format.check_values(delta.cpu().numpy(), where))
        if isinstance(self._shards, DeviceRows):
            self._shards.write(where, epoch, upload(delta, self._shards.device))
            return
        copied = download(delta)
        self._behind.write(where, lambda: self._store(where, epoch, self._format.encode(copied().numpy(), where)))

    def clear(self) -> None:
        """Set all perturbations to zero, as in a new memory."""
        self._behind.forget()
        self._shards.clear()

    def flush(self) -> None:
        """Write mapped files to the disk."""
        self._behind.wait()
        self._shards.flush()

    def check_available(self, epoch: int) -> None:
        """Raise InputError if a later epoch has overwritten perturbations that `epoch` needs."""
        self._behind.wait()
        for _, where in self._blocks(self._lane_rows()):
            for slot in range(2):
                last = self._epochs(self._shards.gather(slot, where))
                if (last > epoch).any():
                    refuse_late(int(where[last > epoch][0]), int(last[last > epoch][0]), epoch)

    def histogram(self, epoch: int, norm: str, bins: int, parts: int = 1) -> list[float]:
        """Return the shares of owned entries (l2, l1: of perturbations) by size / eps, in bins from 0 to 1.

        Args:
            epoch, norm, bins: As for `histogram_counts`.
            parts: The number of equal parts of a row along its first dimension; only the first is counted.
        """
        counts = self.histogram_counts(epoch, norm, bins, self.rank, self.world_size, parts)
        shares: list[float] = (counts / counts.sum().clamp(min=1)).tolist()
        return shares

    def histogram_counts(
        self, epoch: int, norm: str, bins: int, lane: int | None = None, lanes: int | None = None, parts: int = 1
    ) -> Tensor:
        """Return the numbers of entries (l2, l1: of perturbations) of a lane by size / eps, in float64, exactly.

        Args:
            epoch: Of the epoch before this one, as `read` returns them.
            norm: "linf", "l2" or "l1".
            bins: The number of bins from 0 to 1.
            lane, lanes: The samples i = lane mod lanes (default: all that this process owns); counts of lanes add up.
            parts: As for `histogram`.
        """
        self._behind.wait()
        counts = torch.zeros(bins, dtype=torch.float64)
        for _, where in self._blocks(self._lane_rows(lane, lanes), MAX_BLOCK_BYTES // 4):
            delta = self._read(where, epoch).cpu().chunk(parts, 1)[0]
            whole = delta.flatten(1)
            sizes = whole.abs() if norm == "linf" else torch.linalg.vector_norm(whole, ord=ORDERS[norm], dim=1)
            counts += torch.histc(sizes.div_(self.eps).clamp_(max=1), bins, 0, 1)
        return counts

    # ---- checkpoints

    def state(self, epoch: int, lane: int | None = None, lanes: int | None = None) -> dict[str, Tensor]:
        """Return the newest perturbation of each sample of a lane up to `epoch`, for a checkpoint inside or before it.

        Args:
            epoch: The current epoch.
            lane, lanes: The samples i = lane mod lanes, in their order (default: all that this process owns).
        """
        self._behind.wait()
        samples, rows_as = self._lane_rows(lane, lanes), self._format
        values = np.zeros((len(samples), rows_as.values), rows_as.kind)
        tags = np.zeros((len(samples), 2), np.int64)
        for part, where in self._blocks(samples):
            rows = self._newest(where, epoch + 1)
            values[part] = rows_as.stored(rows)
            tags[part, 0] = self._epochs(rows)
            tags[part, 1] = rows_as.tags(rows)[:, 2]
            if rows_as.seed != rows_as.saved_seed:  # without the id: any memory can load it
                tags[part, 1] = rows_as.checksums(rows, rows_as.saved_seed) * (tags[part, 0] >= 0)
        return {
            "values": torch.from_numpy(values.astype(rows_as.kind.newbyteorder("="), copy=False)).view(-1, *self.shape),
            "tags": torch.from_numpy(tags),  # epoch (-1: never written) and checksum
            "eps": torch.tensor(self.eps, dtype=torch.float64),
        }

    def load_state(self, state: Mapping[str, Tensor], lane: int | None = None, lanes: int | None = None) -> None:
        """Continue from a `state` of this lane; one that does not fit changes nothing."""
        self._behind.forget()
        samples, rows_as = self._lane_rows(lane, lanes), self._format
        values, tags = check_state(state, samples, rows_as)
        rows, slots = np.zeros((len(samples), rows_as.row_bytes), np.uint8), tags[:, 0] % 2
        rows_as.stored(rows)[:] = values
        rows_as.tags(rows)[:] = np.column_stack([samples, tags[:, 0] + 1, tags[:, 1]]) * (tags[:, :1] >= 0)
        for slot in range(2):
            rows_as.check(rows[slots == slot], samples[slots == slot], slot, rows_as.saved_seed)
        if rows_as.seed != rows_as.saved_seed:
            rows_as.tags(rows)[:, 2] = rows_as.checksums(rows) * (tags[:, 0] >= 0)
        for slot in range(2):
            self._shards.scatter(slot, samples, rows * (slots == slot)[:, None])

    def file_state(self, epoch: int, lane: int | None = None, lanes: int | None = None) -> dict[str, Tensor]:
        """Return what `check_files` needs: the id of the folder and the tags of a lane's rows, 16 bytes per sample."""
        self._behind.wait()
        samples = self._lane_rows(lane, lanes)
        bare = [self._shards.gather(slot, samples, first=self._format.row_bytes - 8) for slot in range(2)]
        tags = np.stack(bare).view("<u4").astype(np.uint32)
        if self._unfinished is not None and self._unfinished.epoch == epoch:  # not written again yet
            owned = samples // self.world_size
            rows = self._unfinished.rows[owned]
            tags[epoch % 2, rows] = self._unfinished.tags[owned][rows]
        return {
            "id": torch.from_numpy(np.frombuffer(self._id, np.uint8).copy()),
            "tags": torch.from_numpy(tags.view(np.int32)),  # generation, sample, (epoch + 1, checksum)
        }

    def check_files(
        self, state: Mapping[str, Tensor], epoch: int, lane: int | None = None, lanes: int | None = None
    ) -> None:
        """Raise InputError unless the files hold what they held when `file_state` gave this lane's state in `epoch`.

        Every row must be as it was. Only rows that the epoch had not written yet may have been written since: the
        epoch writes them again. A crash may have torn these.
        """
        self._behind.forget()
        samples = self._lane_rows(lane, lanes)
        saved = check_file_state(state, len(samples), self._id, self.folder)
        before, now = saved[(epoch - 1) % 2], saved[epoch % 2]
        is_open = now[:, 0] <= before[:, 0]  # else this row is the newest of its sample
        for part, where in self._blocks(samples):
            check_unchanged(self._format, self._shards, where, (epoch - 1) % 2, before[part], epoch)
        for part, where in self._blocks(samples):
            mine = is_open[part]
            check_unchanged(self._format, self._shards, where[~mine], epoch % 2, now[part][~mine], epoch)
            check_open(self._format, self._shards, where[mine], now[part][mine], epoch)
        if self._unfinished is None or self._unfinished.epoch != epoch:
            none = np.zeros(self.owned, bool), np.zeros((self.owned, 2), np.uint32)
            self._unfinished = Unfinished(epoch, *none)
        self._unfinished.rows[samples // self.world_size] = is_open
        self._unfinished.tags[samples // self.world_size] = now

    # ---- rows

    def _lane_rows(self, lane: int | None = None, lanes: int | None = None) -> Index:
        """Return the samples of a lane, which this process must own; of all lanes that it owns by default."""
        lane, lanes = self.rank if lane is None else lane, self.world_size if lanes is None else lanes
        if not (0 <= lane < lanes and lanes % self.world_size == 0 and lane % self.world_size == self.rank):
            place = {"rank": self.rank, "world_size": self.world_size}
            raise InputError("memory-foreign-lane", lane=lane, lanes=lanes, **place)
        return np.arange(lane, self.n, lanes)

    def _blocks(self, samples: Index, most: int = MAX_BLOCK_BYTES) -> Iterator[tuple[slice, Index]]:
        """Yield samples in blocks, with their place among `samples`; their rows are soon in RAM."""
        size = max(1, min(MAX_ROWS_PER_BLOCK, most // self._format.row_bytes))
        for first in range(0, len(samples), size):
            where = samples[first : first + size]
            self._shards.read_soon(0, where)
            self._shards.read_soon(1, where)
            yield slice(first, first + len(where)), where

    def _epochs(self, rows: Rows) -> Index:
        """Return the epochs in which rows were written; -1 for never."""
        return self._format.tags(rows)[:, 1].astype(np.int64) - 1

    def _read(self, where: Index, epoch: int) -> Tensor:
        if isinstance(self._shards, DeviceRows):
            return self._shards.read(where, epoch)
        return self._format.decode(self._newest(where, epoch))

    def _read_ahead(self, where: Index, epoch: int) -> Tensor:
        self._shards.read_soon((epoch - 1) % 2, where)
        self._shards.read_soon(epoch % 2, where)  # the pages that the rows will be written to
        return self._read(where, epoch)

    def _store(self, where: Index, epoch: int, rows: Rows) -> None:
        self._format.tag(rows, where, epoch)
        self._shards.scatter(epoch % 2, where, rows)

    def _newest(self, where: Index, epoch: int) -> Rows:
        """Return the newest rows before `epoch`, checked; zeros for samples never written."""
        slot = (epoch - 1) % 2
        rows = self._shards.gather(slot, where)
        others = self._epochs(rows) != epoch - 1
        self._format.check(rows, where, slot)
        if others.any():
            rows[others] = self._find_newest(rows[others], where[others], slot, epoch)
        return rows

    def _find_newest(self, rows: Rows, where: Index, slot: int, epoch: int) -> Rows:
        """Return the newest rows before `epoch`, given the rows of `slot`, none of which is of epoch - 1."""
        mine = self._epochs(rows)
        if (mine >= epoch).any():
            refuse_late(int(where[mine >= epoch][0]), int(mine[mine >= epoch][0]), epoch)
        if epoch > 0:  # else nothing is older; a row that a crash damaged in epoch 0 is not needed
            others = self._shards.gather(1 - slot, where)
            self._format.check(others, where, 1 - slot)
            theirs = self._epochs(others)
            newer = (theirs > mine) & (theirs < epoch)
            rows[newer] = others[newer]
        return rows
