"""Random points of the ball: the cheapest attack."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.search import Search
from sihg.robust.threat import extreme_noise, uniform_noise


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise(Attack):
    """Try random points: some anywhere in the ball, as many at its extremes: corners, or for L2 the sphere.

    Args:
        draws: Points of each kind.
    Example:
        >>> noise = Noise(eps=0.1, draws=5)
        >>> noise(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    uses_gradients: ClassVar[bool | None] = False
    takes_targets: ClassVar[bool] = True

    draws: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(draws=self.draws)

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return a forward pass per point, and one at the sample."""
        return (1 + 2 * self.draws) / 3

    def search(self, search: Search, seed: int) -> None:
        """Try point after point on the rows that are not broken yet."""
        search.record_clean()
        kinds = (uniform_noise, extreme_noise)
        for number in range(2 * self.draws):
            rows = search.unbroken()
            if not len(rows):
                return
            make = partial(kinds[number % 2], self.norm, radius=self.eps, dtype=torch.float64)
            delta = rows.draw(rows.x.shape[1:], make, seed, "noise", number)
            point = rows.x + rows.feasible.project_(delta)
            search.record(rows, point, search.compute_logits(rows, point))
