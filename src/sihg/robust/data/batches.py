"""Batches: the input of a method's step, the order of an epoch, and the loop that yields them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sihg.core.draw import generator, hash_key, normal, uniform
from sihg.core.processes import SHARDS
from sihg.errors import InputError
from sihg.robust.data.augment import Augment, Move
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.waits import upload


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples of an epoch, as floats and augmented, and the source of all their randomness.

    In a loop of your own: Batch(x, y, index, epoch, step), with a step that grows, so that noise differs.

    Args:
        x: The samples.
        y: Their labels.
        index: The number of each sample in the data set.
        epoch: The epoch, from 0 on.
        step: Global batches before this one, over all epochs.
        time: Epochs trained before this batch, with their fraction (below 0: `epoch`).
        size: Samples of the global batch: losses are sums divided by it (0: those of x).
        seed: Decides all draws.
        moves: The augmentation of the global batch.
        rows: The rows of the global batch that these samples are, if they are one lane of it (None: all).
        lane: The number of that lane.
    Raises:
        InputError: Unless x, y and index have the same number of rows, at least one ("batch-rows").
    Example:
        >>> batch = Batch(torch.zeros(4, 2), torch.zeros(4), torch.tensor([4, 1, 2, 6]), epoch=0)
        >>> [lane.index.tolist() for lane in batch.lanes(4)]
        [[4], [1], [2, 6]]
    """

    x: Tensor
    y: Tensor
    index: Tensor
    epoch: int
    step: int = 0
    time: float = -1.0
    size: int = 0
    seed: int = 0
    moves: Move | None = None
    rows: Tensor | None = None
    lane: int = 0

    def __repr__(self) -> str:
        return f"Batch({len(self.x)} of shape {tuple(self.x.shape[1:])}, epoch {self.epoch}, step {self.step})"

    def __post_init__(self) -> None:
        rows = (len(self.x), len(self.y), len(self.index))
        if len(set(rows)) > 1 or not rows[0]:
            raise InputError("batch-rows", rows=rows)
        if self.time < 0:
            object.__setattr__(self, "time", float(self.epoch))
        if self.size == 0:
            object.__setattr__(self, "size", len(self.x))

    @property
    def part(self) -> Tensor | slice:
        """The rows of these samples in the global batch."""
        return slice(None) if self.rows is None else self.rows

    @property
    def move(self) -> Move | None:
        """The augmentation of x."""
        return None if self.moves is None else self._own_rows(self.moves)

    def other_move(self) -> Move | None:
        """Return an augmentation independent of `move`: those of the global batch, shuffled."""
        return None if self.moves is None else self._own_rows(self.moves.shuffled(self.draw("delta")))

    def _own_rows(self, moves: Move) -> Move:
        return moves.rows(torch.arange(self.size)[self.part])

    def draw(self, purpose: str) -> torch.Generator:
        """Return the generator for a purpose, the same for all lanes of a batch: draw `size` rows and take `part`."""
        return generator(self.seed, purpose, self.epoch, self.step)

    def uniform(self, purpose: str, shape: Sequence[int] | None = None) -> Tensor:
        """Draw from [0, 1) for each sample, by its number: the same in any lane, batch size and device.

        Args:
            purpose: What the draws are for, such as "start"; different purposes draw independently.
            shape: The shape per sample (default: that of x).
        """
        return self._noise(uniform, purpose, shape)

    def normal(self, purpose: str, shape: Sequence[int] | None = None) -> Tensor:
        """Draw standard normal numbers for each sample; arguments as for `uniform`."""
        return self._noise(normal, purpose, shape)

    def _noise(self, draw: Callable[..., Tensor], purpose: str, shape: Sequence[int] | None) -> Tensor:
        key = hash_key(self.seed, purpose, self.epoch, self.step)
        wanted = self.x.shape[1:] if shape is None else shape
        return draw(key, upload(self.index, self.x.device), wanted, self.x.dtype)

    def lanes(self, count: int) -> "Iterator[Batch]":
        """Yield the samples of each of `count` lanes that has any; sample i is in lane i mod `count`."""
        for lane in range(count):
            rows = (self.index % count == lane).nonzero().flatten()
            if len(rows):
                x, y, index = self.x[rows], self.y[rows], self.index[rows]
                yield replace(self, x=x, y=y, index=index, rows=rows, lane=lane)


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """The samples of one step: a batch for each lane that this process computes, without lanes that have none."""

    lanes: tuple[Batch, ...]
    time: float
    size: int
    coming: Mapping[int, Tensor] = field(default_factory=dict)  # the samples of the next step, by lane


def batches(
    data: Any,
    *,
    size: int,
    seed: int = 0,
    epochs: int = 1,
    augment: Augment | None = None,
    device: str = "cpu",
) -> Iterator[Batch]:
    """Yield every sample once per epoch, in the order of the epoch; the last batch may be smaller.

    Args:
        data: Samples, a torch Dataset, or a pair (x, y).
        size: Samples per batch.
        seed: Decides the order and all draws.
        epochs: Epochs to yield.
        augment: Random flips and crops, or None.
        device: Where the batches go.
    Yields:
        The batches.
    Raises:
        InputError: If the data or the size cannot be used.
    Example:
        >>> [len(batch.x) for batch in batches((torch.zeros(5, 2), [0, 1, 0, 1, 0]), size=2)]
        [2, 2, 1]
    """
    samples = as_samples(data)
    check_batch_size(size, len(samples))
    if augment is not None:
        augment.check(samples.shape)
    for epoch in range(epochs):
        for batch in epoch_batches(samples, size=size, seed=seed, epoch=epoch, first=0, augment=augment, device=device):
            yield from batch.lanes


def steps_per_epoch(n: int, size: int) -> int:
    """Return the number of batches per epoch."""
    return -(-n // size)


def check_batch_size(size: int, n: int) -> None:
    """Raise InputError unless there is at least one batch."""
    if size < 1:
        raise InputError("batch-size-range", batch_size=size)
    if n < 1:
        raise InputError("no-samples")


def epoch_batches(
    samples: Samples,
    *,
    size: int,
    seed: int,
    epoch: int,
    first: int,
    augment: Augment | None,
    device: str = "cpu",
    lanes: Sequence[int] = (0,),
    of: int = 1,
) -> Iterator[GlobalBatch]:
    """Yield the batches of one epoch from number `first` on, of each the samples of these `lanes` out of `of`."""
    steps = steps_per_epoch(len(samples), size)
    cut = epoch_order(len(samples), seed, epoch)[first * size :].split(size)
    rows = [_rows_by_lane(index, lanes, of) for index in cut]
    own = [{lane: index[part] for lane, part in parts.items()} for index, parts in zip(cut, rows, strict=True)]
    reader = iter(samples.reader([part for parts in own for part in parts.values()], seed=seed, epoch=epoch))
    for number, index in enumerate(cut):
        step = epoch * steps + first + number
        moves = None if augment is None else augment.draw(len(index), generator(seed, "augment", epoch, step))
        batches = []
        for lane, samples_of_lane in own[number].items():
            part, x = rows[number][lane], upload(next(reader), device)
            batches.append(
                Batch(
                    x=x if moves is None else moves.rows(part).apply(x),
                    y=upload(samples.y[samples_of_lane], device),
                    index=samples_of_lane,
                    epoch=epoch,
                    step=step,
                    time=step / steps,
                    size=len(index),
                    seed=seed,
                    moves=moves,
                    rows=None if of == 1 else part,
                    lane=lane,
                )
            )
        coming = own[number + 1] if number + 1 < len(own) else {}
        yield GlobalBatch(tuple(batches), step / steps, len(index), coming)


def _rows_by_lane(index: Tensor, lanes: Sequence[int], of: int) -> dict[int, Tensor]:
    """Return the rows of a global batch that belong to each of these lanes, without lanes that have none."""
    found = {lane: (index % of == lane).nonzero().flatten() for lane in lanes}
    return {lane: rows for lane, rows in found.items() if len(rows)}


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """Return the order of an epoch, a function of (seed, epoch) alone: a permutation of n samples, sorted by key.

    Shard v holds the samples i with i = v mod 64. The j-th sample of its permutation has the key (j + u_v) / len_v,
    where u_v is uniform.
    """
    keys, samples = [], []
    for v in range(min(SHARDS, n)):
        draw = generator(seed, "order", epoch, v)
        shard = torch.arange(v, n, SHARDS)
        samples.append(shard[torch.randperm(len(shard), generator=draw)])
        u = torch.rand((), generator=draw, dtype=torch.float64)
        keys.append((torch.arange(len(shard), dtype=torch.float64) + u) / len(shard))
    if not samples:
        return torch.empty(0, dtype=torch.int64)
    return torch.cat(samples)[torch.cat(keys).argsort(stable=True)]
