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
    """Some samples of an epoch, as floats and augmented, and where all their randomness comes from."""

    x: Tensor
    y: Tensor
    index: Tensor  # of each sample in the data set
    epoch: int
    step: int  # global batches before this one, over all epochs
    time: float  # epochs trained before this batch, with their fraction
    size: int  # samples of the global batch: losses are sums divided by it
    seed: int = 0
    move: Move | None = None  # the augmentation that x has gone through
    part: int = 0  # which part of the global batch this is, when gradients are accumulated

    def draw(self, purpose: str) -> torch.Generator:
        """The generator for one purpose; equal batches of equal runs give equal draws."""
        return generator(self.seed, f"{purpose}/{self.part}" if self.part else purpose, self.epoch, self.step)

    def parts(self, count: int) -> "Iterator[Batch]":
        """The batch in `count` parts of nearly equal size, whose gradients add up to that of the whole."""
        for part, rows in enumerate(torch.arange(len(self.x)).tensor_split(count)):
            if len(rows):
                move = None if self.move is None else self.move.rows(rows)
                x, y, index = self.x[rows], self.y[rows], self.index[rows]
                yield replace(self, x=x, y=y, index=index, move=move, part=part)


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
    check_size(size, len(samples))
    if augment is not None:
        augment.check(samples.shape)
    for epoch in range(epochs):
        yield from epoch_batches(samples, size=size, seed=seed, epoch=epoch, first=0, augment=augment, device=device)


def steps_of(n: int, size: int) -> int:
    """Batches in an epoch."""
    return -(-n // size)


def check_size(size: int, n: int) -> None:
    """Refuse a batch size that gives no batch."""
    if size < 1:
        raise InputError(f"the batch size must be at least 1, got {size}: 50 is common for small data")
    if n < 1:
        raise InputError("the data set is empty: there is nothing to train on")


def epoch_batches(
    samples: Samples, *, size: int, seed: int, epoch: int, first: int, augment: Augment | None, device: str = "cpu"
) -> Iterator[Batch]:
    """The batches of one epoch from number `first` on."""
    steps = steps_of(len(samples), size)
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
            move=move,
        )
