"""Noise: the cheapest attack of all, which nothing that is robust should fall to."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sihg.robust.attacks.base import Attack, Search, check_counts
from sihg.robust.threat import uniform_noise


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise(Attack):
    """Looks at `draws` points anywhere in the ball and as many on its surface: corners of the box, or the L2 sphere."""

    draws: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(draws=self.draws)

    def search(self, search: Search, seed: int) -> None:
        """Look after look, each at those that hold."""
        search.begin()
        for number in range(2 * self.draws):
            rows = search.left()
            if not len(rows):
                return
            draw = self._inside if number % 2 == 0 else self._surface
            delta = rows.draw(rows.x.shape[1:], draw, seed, "noise", number)
            point = rows.x + rows.feasible.project_(delta)
            search.keep(rows, point, search.look(rows, point))

    def _inside(self, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
        return uniform_noise(self.norm, shape, self.eps, draw, torch.float64)

    def _surface(self, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
        if self.norm == "linf":
            return torch.randint(0, 2, shape, generator=draw).double().mul_(2).sub_(1).mul_(self.eps)
        normal = torch.randn(shape, generator=draw, dtype=torch.float64)
        lengths = torch.linalg.vector_norm(normal.flatten(1), dim=1).view(-1, *(1,) * (len(shape) - 1))
        return normal.mul_(self.eps / lengths)
