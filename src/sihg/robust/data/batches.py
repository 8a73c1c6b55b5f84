"""Batches: what a method's step is given, and the loop that gives them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.errors import InputError
from sihg.robust.data.augment import Augment, Move
from sihg.robust.data.order import order
from sihg.robust.data.samples import Samples, as_samples


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples of an epoch, as floats and augmented, and where all their randomness comes from.

    From a loader of your own: Batch(x, y, index, epoch, step), with a step that counts on, so that noise differs.
    """

    x: Tensor
    y: Tensor
    index: Tensor  # of each sample in the data set
    epoch: int
    step: int = 0  # global batches before this one, over all epochs
    time: float = -1.0  # epochs trained before this batch, with their fraction (below 0: `epoch`)
    size: int = 0  # samples of the global batch: losses are sums divided by it (0: those of x)
    seed: int = 0
    moves: Move | None = None  # the augmentation of the global batch
    first: int = 0  # row of the global batch that these begin with, when gradients are accumulated

    def __post_init__(self) -> None:
        rows = (len(self.x), len(self.y), len(self.index))
        if len(set(rows)) > 1 or not rows[0]:
            raise InputError(f"x, y and index have {rows} rows: give a batch of at least one sample, one of each a row")
        if self.time < 0:
            object.__setattr__(self, "time", float(self.epoch))
        if self.size == 0:
            object.__setattr__(self, "size", len(self.x))

    @property
    def part(self) -> slice:
        """The rows of the global batch that these are."""
        return slice(self.first, self.first + len(self.x))

    @property
    def move(self) -> Move | None:
        """The augmentation that x has gone through."""
        return None if self.moves is None else self._mine(self.moves)

    def other_move(self) -> Move | None:
        """One that is independent of it: the moves of the global batch, handed to other images."""
        return None if self.moves is None else self._mine(self.moves.shuffled(self.draw("delta")))

    def _mine(self, moves: Move) -> Move:
        return moves.rows(torch.arange(self.size)[self.part])

    def draw(self, purpose: str) -> torch.Generator:
        """The generator for one purpose, the same for all parts of a batch: draw for `size` rows and take `part`."""
        return generator(self.seed, purpose, self.epoch, self.step)

    def parts(self, count: int) -> "Iterator[Batch]":
        """The batch in `count` parts of nearly equal size, whose gradients add up to that of the whole."""
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
    """Every sample once an epoch, in the epoch's order, the last batch of an epoch perhaps smaller.

    `data` is a Samples, a torch Dataset or a pair (x, y).
    """
    samples = as_samples(data)
    check_batch_size(size, len(samples))
    if augment is not None:
        augment.check(samples.shape)
    for epoch in range(epochs):
        yield from epoch_batches(samples, size=size, seed=seed, epoch=epoch, first=0, augment=augment, device=device)


def steps_per_epoch(n: int, size: int) -> int:
    """Batches in an epoch."""
    return -(-n // size)


def check_batch_size(size: int, n: int) -> None:
    """Refuse a batch size that gives no batch."""
    if size < 1:
        raise InputError(f"the batch size must be at least 1, got {size}: 50 is common for small data")
    if n < 1:
        raise InputError("the data set is empty: there is nothing to train on")


def epoch_batches(
    samples: Samples, *, size: int, seed: int, epoch: int, first: int, augment: Augment | None, device: str = "cpu"
) -> Iterator[Batch]:
    """The batches of one epoch from number `first` on."""
    steps = steps_per_epoch(len(samples), size)
    places = order(len(samples), seed, epoch)
    for number in range(first, steps):
        index = places[number * size : (number + 1) * size]
        step = epoch * steps + number
        x, move = samples.floats(index).to(device), None
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
