"""The rows of a perturbation memory on a device other than the CPU: values there, the epochs of rows on the host.

Reading and writing wait for nothing: which row is the newest follows from epochs, which the host knows. Checksums are
computed where rows leave the device, for a checkpoint.
"""

import numpy as np
import torch
from torch import Tensor

from sihg.robust.memory._row_format import INT8_STEPS, Index, RowFormat, Rows, refuse_late
from sihg.robust.memory._shards import Shards
from sihg.robust.waits import upload

DTYPES = {"int8": torch.int8, "fp16": torch.float16, "fp32": torch.float32}


class DeviceRows(Shards):
    """Rows of two generations on a device; they hold, bit for bit, what rows in RAM would.

    Args:
        rows_as: The format of a row.
        rows: The rows of one shard in RAM, which are copied.
        samples: The samples that they belong to, all rows in order.
        device: Where to keep them.
    """

    def __init__(self, rows_as: RowFormat, rows: Shards, samples: Index, device: torch.device) -> None:
        super().__init__(rows.count, rows_as.row_bytes, ({}, {}))
        self.device, self._format = device, rows_as
        self._epochs = np.full((2, len(samples)), -1, np.int64)  # in which rows were written; -1 for never
        size, dtype = (len(samples), rows_as.values), DTYPES[rows_as.dtype]
        self._values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(2)]
        for slot, generation in enumerate(rows.generations):
            (only,) = generation.values()
            if rows_as.tags(only).any():
                self.scatter(slot, samples, only)

    def read(self, where: Index, epoch: int) -> Tensor:
        """Return the newest perturbations before `epoch` as float32 on the device."""
        slot, places = (epoch - 1) % 2, self.places(where)
        mine, theirs = self._epochs[slot, places], self._epochs[1 - slot, places]
        if (mine >= epoch).any():
            refuse_late(int(where[mine >= epoch][0]), int(mine[mine >= epoch][0]), epoch)
        there = upload(torch.from_numpy(places), self.device)
        values = self._values[slot][there]
        newer = (theirs > mine) & (theirs < epoch)
        if newer.any():
            chosen = upload(torch.from_numpy(newer), self.device)[:, None]
            values = torch.where(chosen, self._values[1 - slot][there], values)
        return self._decode(values).view(len(where), *self._format.shape)

    def write(self, where: Index, epoch: int, delta: Tensor) -> None:
        """Store perturbations (n, values) of `epoch`, float32 on the device, rounded."""
        places = self.places(where)
        self._values[epoch % 2][upload(torch.from_numpy(places), self.device)] = self._encode(delta)
        self._epochs[epoch % 2, places] = epoch

    def gather(self, slot: int, where: Index, first: int = 0) -> Rows:
        """Return copies of the rows of samples, from their byte `first` on, with tags."""
        places = self.places(where)
        rows, epochs = np.zeros((len(where), self._row_bytes), np.uint8), self._epochs[slot, places]
        known = np.flatnonzero(epochs >= 0)
        if len(known):
            there = upload(torch.from_numpy(places[known]), self.device)
            written = np.zeros((len(known), self._row_bytes), np.uint8)
            self._format.stored(written)[:] = self._values[slot][there].cpu().numpy()
            self._format.tag(written, where[known], epochs[known])
            rows[known] = written
        return rows[:, first:]

    def scatter(self, slot: int, where: Index, rows: Rows) -> None:
        """Write the rows of samples."""
        places, stored = self.places(where), self._format.stored(rows)
        values = torch.from_numpy(stored.astype(stored.dtype.newbyteorder("=")))
        self._values[slot][upload(torch.from_numpy(places), self.device)] = upload(values, self.device)
        self._epochs[slot, places] = self._format.tags(rows)[:, 1].astype(np.int64) - 1

    def clear(self) -> None:
        """Set all rows to zero."""
        self._epochs[:] = -1
        for values in self._values:
            values.zero_()

    def _encode(self, delta: Tensor) -> Tensor:
        """Round as `RowFormat.encode` does."""
        if self._format.dtype == "int8":
            return (delta * (INT8_STEPS / self._format.eps)).round_().to(torch.int8)
        scaled = delta / delta.new_full((), self._format.eps)  # CUDA multiplies by 1 / eps if it is a number
        return scaled.clamp_(-1, 1).to(DTYPES[self._format.dtype])

    def _decode(self, values: Tensor) -> Tensor:
        """Return floats as `RowFormat.decode` does."""
        delta = values.to(torch.float32)
        if self._format.dtype == "int8":
            delta.div_(delta.new_full((), INT8_STEPS))
        return delta.mul_(self._format.eps)
