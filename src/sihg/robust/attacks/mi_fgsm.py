"""The momentum iterative fast gradient sign method (Dong et al., 2018)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks._steepest_run import ascend_steps
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.search import Search
from sihg.robust.threat import uniform_noise


@dataclass(frozen=True, kw_only=True, eq=False)
class MIFGSM(Attack):
    """MI-FGSM-T-R (Dong et al., 2018): T ascent steps along a sum of cross-entropy gradients, R times.

        m <- μ m + ∇/|∇|₁        (l2: ∇/|∇|₂)
        δ <- project(δ + η sign(m))        (l2: m/|m|₂ instead of the sign)

    The first run starts at x, others at random points of the ball. A sample is broken when it is misclassified at any
    iterate, the start included, and then leaves the batch.

    Args:
        steps: The steps T of a run.
        restarts: The runs R, the first included.
        momentum: The factor μ.
        step_size: The length η of a step (default: eps / steps).
        last_iterate: Count the end of a run only, the classical rule.
    Raises:
        InputError: If a setting is out of range.
    Example:
        >>> attack = MIFGSM(eps="8/255")
        >>> attack(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    uses_gradients: ClassVar[bool | None] = True
    searches_fast: ClassVar[bool] = True
    takes_targets: ClassVar[bool] = True

    steps: int = 10
    restarts: int = 1
    momentum: float = 1.0
    step_size: float | None = None
    last_iterate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts)
        if not 0 <= self.momentum < float("inf"):
            raise InputError("momentum-range", momentum=self.momentum)
        if self.step_size is not None and not 0 < self.step_size < float("inf"):
            raise InputError("mi-fgsm-step-size-range", step_size=self.step_size)

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return a pass per step, and a forward pass at the end of each run."""
        return self.restarts * (self.steps + 1 / 3)

    def search(self, search: Search, seed: int) -> None:
        """Run R times, each on the rows that are not broken yet."""
        for run in range(self.restarts):
            rows = search.unbroken()
            if not len(rows):
                return
            self._ascend(search, rows, self._start(rows, seed, run))

    def _ascend(self, search: Search, rows: Rows, delta: Tensor) -> None:
        ascend_steps(
            *(search, rows, delta, self.step_size or self.eps / self.steps),
            steps=self.steps,
            last_iterate=self.last_iterate,
            direction=self._add_momentum,
            memory=torch.zeros_like(delta),
        )

    def _add_momentum(self, g: Tensor, m: Tensor) -> Tensor:
        """Add the gradient of length 1 to μ m, in place; return a copy, which the step may change."""
        order = 2 if self.norm == "l2" else 1
        lengths = torch.linalg.vector_norm(g.flatten(1), ord=order, dim=1).clamp_(min=torch.finfo(g.dtype).tiny)
        return m.mul_(self.momentum).add_(g.div_(lengths.view(-1, *(1,) * (g.dim() - 1)))).clone()

    def _start(self, rows: Rows, seed: int, run: int) -> Tensor:
        if run == 0:
            return torch.zeros_like(rows.x)
        make = partial(uniform_noise, self.norm, radius=self.eps, dtype=rows.x.dtype)
        return rows.feasible.project_(rows.draw(rows.x.shape[1:], make, seed, "mi-fgsm start", run))
