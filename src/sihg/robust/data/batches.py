"""Batches: the input of a method's step, the order of an epoch, and the loop that yields them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.errors import InputError
from sihg.robust.data.augment import Augment, Move
from sihg.robust.data.samples import Samples, as_samples

SHARDS = 64  # of the order of an epoch


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
        first: The row of the global batch where these begin, when gradients are accumulated.
    Raises:
        InputError: Unless x, y and index have the same number of rows, at least one ("batch-rows").
    Example:
        >>> batch = Batch(torch.zeros(4, 2), torch.zeros(4), torch.arange(4), epoch=0)
        >>> [len(part.x) for part in batch.parts(3)]
        [2, 1, 1]
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
    first: int = 0

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
    def part(self) -> slice:
        """The rows of these samples in the global batch."""
        return slice(self.first, self.first + len(self.x))

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
        """Return the generator for a purpose, the same for all parts of a batch: draw `size` rows and take `part`."""
        return generator(self.seed, purpose, self.epoch, self.step)

    def parts(self, count: int) -> "Iterator[Batch]":
        """Yield the batch in `count` parts of nearly equal size, whose gradients add up to that of the whole."""
        for rows in torch.arange(len(self.x)).tensor_split(count):
            if len(rows):
                x, y, index = self.x[rows], self.y[rows], self.index[rows]
                yield replace(self, x=x, y=y, index=index, first=int(rows[0]))


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
        yield from epoch_batches(samples, size=size, seed=seed, epoch=epoch, first=0, augment=augment, device=device)


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
    samples: Samples, *, size: int, seed: int, epoch: int, first: int, augment: Augment | None, device: str = "cpu"
) -> Iterator[Batch]:
    """Yield the batches of one epoch from number `first` on."""
    steps = steps_per_epoch(len(samples), size)
    places = epoch_order(len(samples), seed, epoch)
    cut = places[first * size :].split(size)
    reader = samples.reader(cut, seed=seed, epoch=epoch)
    for number, (index, read) in enumerate(zip(cut, reader, strict=True), first):
        step = epoch * steps + number
        x, move = read.to(device), None
        if augment is not None:
            move = augment.draw(len(index), generator(seed, "augment", epoch, step))
            x = move.apply(x)
        yield Batch(
            x=x,
            y=samples.y[index].to(device),
            index=index,
            epoch=epoch,
            step=step,
            time=step / steps,
            size=len(index),
            seed=seed,
            moves=move,
        )


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
