"""Random flip and padded crop of images, also applied to perturbations, which can be moved back."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.waits import upload


@dataclass(frozen=True)
class Move:
    """A move of each image of a batch: shifted by (down, right) pixels, zeros from outside, then flipped."""

    down: Tensor
    right: Tensor
    flipped: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return the batch as the model sees it."""
        rows, columns = self._source(x)
        return _gather(x, rows, columns)

    def back(self, moved: Tensor, rest: Tensor) -> Tensor:
        """Return `moved` in the frame of the original images; pixels that were cropped away come from `rest`."""
        rows, columns = self._target(moved)
        inside = _inside(rows, moved.shape[2])[:, None, :, None] & _inside(columns, moved.shape[3])[:, None, None, :]
        return torch.where(inside, _gather(moved, rows, columns), rest)

    def rows(self, index: Tensor) -> "Move":
        """Return the moves of these images."""
        return Move(self.down[index], self.right[index], self.flipped[index])

    def shuffled(self, generator: torch.Generator) -> "Move":
        """Return the same moves for other images of the batch."""
        return self.rows(torch.randperm(len(self.down), generator=generator))

    def _source(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and column of the original for each row and column of the result."""
        down, right, flipped = self._on_device(x)
        rows = torch.arange(x.shape[2], device=x.device) - down
        columns = torch.arange(x.shape[3], device=x.device).expand(len(x), -1)
        return rows, torch.where(flipped, x.shape[3] - 1 - columns, columns) - right

    def _target(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and column of the result for each row and column of the original."""
        down, right, flipped = self._on_device(x)
        rows = torch.arange(x.shape[2], device=x.device) + down
        columns = torch.arange(x.shape[3], device=x.device) + right
        return rows, torch.where(flipped, x.shape[3] - 1 - columns, columns)

    def _on_device(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return down, right and flipped as columns on the device of x, by one copy."""
        down, right, flipped = upload(torch.stack([self.down, self.right, self.flipped]), x.device)[:, :, None]
        return down, right, flipped.bool()


@dataclass(frozen=True)
class Augment:
    """Flip left and right with probability 1/2, and shift by up to `crop` pixels (pad, then crop)."""

    flip: bool = True
    crop: int = 4

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise InputError("crop-range", crop=self.crop)

    def draw(self, n: int, generator: torch.Generator) -> Move:
        """Draw a move for each of n images."""
        down, right = torch.randint(-self.crop, self.crop + 1, (2, n), generator=generator)
        coin = torch.rand(n, generator=generator) < 0.5
        return Move(down, right, coin if self.flip else torch.zeros(n, dtype=torch.bool))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise InputError unless samples are images that can be flipped and cropped."""
        if len(shape) != 3 or min(shape[1:]) <= self.crop:
            raise InputError("augment-shape", shape=shape, crop=self.crop)


def _inside(place: Tensor, size: int) -> Tensor:
    return (place >= 0) & (place < size)


def _gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return x[b, :, rows[b], columns[b]], zero for places outside."""
    n, c, h, w = x.shape
    known = _inside(rows, h)[:, :, None] & _inside(columns, w)[:, None, :]
    place = rows.clamp(0, h - 1)[:, :, None] * w + columns.clamp(0, w - 1)[:, None, :]
    pixels = x.flatten(2).gather(2, place.view(n, 1, h * w).expand(-1, c, -1)).view(n, c, h, w)
    return pixels * known[:, None]
