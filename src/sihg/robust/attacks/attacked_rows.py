"""The samples that are attacked together, and their draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.robust.gradients import breaks, leads
from sihg.robust.threat import Feasible
from sihg.robust.waits import upload

ROWS_PER_DRAW = 64  # rows that share a generator, so that draws do not depend on how many rows are attacked at once


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples that are attacked together."""

    x: Tensor
    y: Tensor
    feasible: Feasible  # the perturbations allowed for each row
    number: Tensor  # of each row in the user's data: decides its draws, and names it in errors
    place: Tensor  # of each row among those that the search began with
    target: Tensor | None = None  # the class that each row shall get, else any wrong one

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> "Rows":
        """Return the rows at these places."""
        x, y, number, place = (rows.index_select(0, index) for rows in (self.x, self.y, self.number, self.place))
        target = None if self.target is None else self.target.index_select(0, index)
        return Rows(x, y, self.feasible.rows(index), number, place, target)

    def alone(self) -> "Rows":
        """Return the same rows for a search of their own."""
        return replace(self, place=torch.arange(len(self), device=self.x.device))

    def breaks(self, logits: Tensor) -> Tensor:
        """Return which rows are broken at points with these logits."""
        return breaks(logits, self.y, self.target)

    def leads(self, logits: Tensor) -> Tensor:
        """Return how far rows are from broken: a margin of logits, negative where they are."""
        return leads(logits, self.y, self.target)

    def draw(self, shape: Sequence[int], make: Callable[..., Tensor], seed: int, purpose: str, run: int = 0) -> Tensor:
        """Draw make(shape=..., generator=...) for each row; a row's draw depends on its number, not on other rows."""
        numbers = self._numbers
        out, block = torch.empty(len(self), *shape, dtype=self.x.dtype), numbers // ROWS_PER_DRAW
        for number in block.unique().tolist():
            rows = (block == number).nonzero().flatten()
            drawn = make(shape=(ROWS_PER_DRAW, *shape), generator=generator(seed, purpose, run, number))
            out[rows] = drawn.to(out)[numbers[rows] % ROWS_PER_DRAW]
        return upload(out, self.x.device)

    @cached_property
    def _numbers(self) -> Tensor:
        """The numbers on the host, which draws."""
        return self.number.cpu()

    def draw_uniform(self, shape: Sequence[int], seed: int, purpose: str, run: int = 0) -> Tensor:
        """Draw numbers in [0, 1) for each row."""
        return self.draw(shape, partial(_uniform, dtype=self.x.dtype), seed, purpose, run)


def _uniform(shape: Sequence[int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=dtype)
