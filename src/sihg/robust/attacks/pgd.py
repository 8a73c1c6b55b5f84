"""Projected gradient ascent on the still-unbroken samples only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack, Rows, Search, check_counts
from sihg.robust.gradients import cross_entropy_per_row
from sihg.robust.threat import uniform_noise


@dataclass(frozen=True, kw_only=True, eq=False)
class PGD(Attack):
    """T steepest ascent steps on the cross-entropy from a random start, R times: PGD-T-R.

    A sample is broken when it is misclassified at any iterate, the start included; it leaves the batch at once, and
    later runs see survivors only. With `last_iterate` only the end of a run counts, the classical rule. `restarts`
    counts runs. Where nothing is found, the run's end of smallest margin is given.
    """

    steps: int = 20
    restarts: int = 1
    step_size: float | None = None  # default 2.5 eps / steps
    last_iterate: bool = False
    random_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts)
        if self.step_size is not None and not 0 < self.step_size < float("inf"):
            raise InputError(
                f"step_size must be finite and > 0, got {self.step_size}: leave it out for 2.5 eps / steps"
            )

    def search(self, search: Search, seed: int) -> None:
        """R runs, each on those that hold."""
        for run in range(self.restarts):
            rows = search.left()
            if not len(rows):
                return
            self._ascend(search, rows, self._start(rows, seed, run))

    def _ascend(self, search: Search, rows: Rows, delta: Tensor) -> None:
        eta = self.step_size or 2.5 * self.eps / self.steps
        for _ in range(self.steps):
            point = rows.x + delta
            logits, _, g = search.slope(rows, point, cross_entropy_per_row)
            held = None if self.last_iterate else search.drop(rows, point, logits)
            if held is not None:
                rows, delta, g = rows.keep(held), delta.index_select(0, held), g.index_select(0, held)
                if not len(rows):
                    return
            rows.feasible.climb_(delta, g, eta)
        point = rows.x + delta
        search.keep(rows, point, search.look(rows, point))

    def _start(self, rows: Rows, seed: int, run: int) -> Tensor:
        if not self.random_start:
            return torch.zeros_like(rows.x)

        def anywhere(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
            return uniform_noise(self.norm, shape, self.eps, draw, rows.x.dtype)

        return rows.feasible.project_(rows.draw(rows.x.shape[1:], anywhere, seed, "attack start", run))
