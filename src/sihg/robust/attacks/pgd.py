"""Projected gradient ascent on unbroken samples; its single step is the fast gradient sign method."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.parse import Number, parse_number
from sihg.robust.attacks._steepest_run import ascend_steps
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.search import Search
from sihg.robust.threat import Bounds, uniform_noise


@dataclass(frozen=True, kw_only=True, eq=False)
class PGD(Attack):
    """PGD-T-R: T steepest ascent steps on the cross-entropy from a random start, R times.

    A sample is broken when it is misclassified at any iterate, the start included. It leaves the batch at once, and
    later runs see survivors only. Where nothing is found, x_adv is the end of a run with the smallest margin.

    Args:
        steps: The steps T of a run.
        restarts: The runs R, the first included.
        step_size: The length of a step (default: 2.5 eps / steps).
        last_iterate: Count the end of a run only, the classical rule.
        random_start: Begin at a random point of the ball, else at x.
    Raises:
        InputError: If a setting is out of range.
    Example:
        >>> attack = PGD(eps="8/255", steps=10)
        >>> attack(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    searches_fast: ClassVar[bool] = True
    takes_targets: ClassVar[bool] = True
    uses_gradients: ClassVar[bool | None] = True

    steps: int = 20
    restarts: int = 1
    step_size: float | None = None
    last_iterate: bool = False
    random_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts)
        if self.step_size is not None and not 0 < self.step_size < float("inf"):
            raise InputError("pgd-step-size-range", step_size=self.step_size)

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return a pass per step, and a forward pass at the end of each run."""
        return self.restarts * (self.steps + 1 / 3)

    def search(self, search: Search, seed: int) -> None:
        """Run R times, each on the rows that are not broken yet."""
        for run in range(self.restarts):
            rows = search.unbroken()
            if not len(rows):
                return
            self.ascend(search, rows, self._start(rows, seed, run), self.step_size or 2.5 * self.eps / self.steps)

    def ascend(self, search: Search, rows: Rows, delta: Tensor, eta: float | Tensor) -> None:
        """Run once from `delta` with steps of length `eta`, a number or one per row."""
        ascend_steps(search, rows, delta, eta, steps=self.steps, last_iterate=self.last_iterate)

    def _start(self, rows: Rows, seed: int, run: int) -> Tensor:
        if not self.random_start:
            return torch.zeros_like(rows.x)
        make = partial(uniform_noise, self.norm, radius=self.eps, dtype=rows.x.dtype)
        return rows.feasible.project_(rows.draw(rows.x.shape[1:], make, seed, "attack start", run))


def FGSM(  # noqa: N802
    *, eps: Number, norm: str = "linf", bounds: Bounds = (0.0, 1.0), last_iterate: bool = False
) -> PGD:
    """Build PGD with one step of length eps from x itself (Goodfellow et al., 2015); x counts too, as PGD's start.

    Args:
        eps: The radius of the ball, a number or text such as "8/255".
        norm: linf, l2 or l1.
        bounds: The lowest and the highest value of x + delta, or None.
        last_iterate: Count the end of the step only.
    Returns:
        The attack.
    Example:
        >>> FGSM(eps=0.1).steps
        1
    """
    eps = parse_number(eps, "eps")
    return PGD(
        eps=eps,
        steps=1,
        norm=norm,
        step_size=eps or None,
        bounds=bounds,
        last_iterate=last_iterate,
        random_start=False,
    )
