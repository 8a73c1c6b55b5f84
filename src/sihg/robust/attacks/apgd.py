"""Auto-PGD (Croce and Hein, 2020, 2021): ascent whose steps adapt to its progress, in L1 also its sparsity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sihg.errors import UnknownNameError
from sihg.robust.attacks._apgd_runs import MomentumRun, SparseRun
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.search import EXACT_STEPS, Search
from sihg.robust.gradients import DLR_CLASSES, TARGETED_DLR_CLASSES, wrong_classes
from sihg.robust.threat import surface_noise

LOSSES = {"ce": 2, "dlr": DLR_CLASSES, "dlr-t": TARGETED_DLR_CLASSES}  # with the classes that each needs
ALPHA = 0.75  # the share of the new direction
WIDE_RADII, WIDE_STEPS = (3.0, 2.0), 0.3  # in L1: radii, in units of eps, that are searched first, and shares of steps
CHECK_GAP = 0.04  # in L1: the share of steps between checks


@dataclass(frozen=True, kw_only=True, eq=False)
class APGD(Attack):
    """Raise the cross-entropy (`ce`) or the difference-of-logits ratio (`dlr`, targeted: `dlr-t`) by adaptive steps.

    With fewer classes than the ratio needs (three, targeted four) it is the difference of logits alone. In L1 a run
    searches the balls of radius 3 eps and 2 eps first, with 30 % of its steps each, as AutoAttack does. Where nothing
    is found, x_adv is the point of smallest margin among the best points of the runs.

    Args:
        loss: ce, dlr or dlr-t.
        steps: Steps of a run.
        restarts: Runs per target, the first included.
        targets: The likeliest wrong classes that `dlr-t` aims at, one after the other.
    Raises:
        InputError: If a setting is out of range.
    Example:
        >>> attack = APGD(eps=0.1, steps=10)
        >>> attack(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    searches_fast: ClassVar[bool] = True
    takes_targets: ClassVar[bool] = True
    uses_gradients: ClassVar[bool | None] = True

    loss: str = "ce"
    steps: int = 100
    restarts: int = 1
    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts, targets=self.targets)
        if self.loss not in LOSSES:
            raise UnknownNameError("loss", self.loss, list(LOSSES))

    @property
    def uses_margin(self) -> bool:
        """Whether the loss is a ratio of logits."""
        return self.loss != "ce"

    def remark(self, classes: int) -> str:
        """Say so if the ratio has too few classes."""
        if classes >= LOSSES[self.loss]:
            return ""
        return (
            f"{classes} classes: the difference of two logits instead of the DLR loss, which needs {LOSSES[self.loss]}"
        )

    def max_passes(self, classes: int) -> float:
        """Return a pass per step and a forward pass at the end of each search of a ball, and one at the sample."""
        runs = self.restarts * (min(self.targets, classes - 1) if self.loss == "dlr-t" else 1)
        balls = len(sparse_stages(self.steps)) if self.norm == "l1" else 1
        return 1 / 3 + runs * (self.steps + balls / 3)

    def search(self, search: Search, seed: int) -> None:
        """Run for each target, each on the rows that are not broken yet."""
        targets: tuple[Tensor | None, ...] = (None,)
        logits = search.record_clean()
        if search.rows.target is not None and self.loss != "ce":
            targets = (search.rows.target,)
        elif self.loss == "dlr-t":
            targets = wrong_classes(logits, search.rows.y).unbind(1)[: self.targets]
        for number, target in enumerate(target for target in targets for _ in range(self.restarts)):
            rows = search.unbroken()
            if not len(rows):
                return
            run = self._run_sparse if self.norm == "l1" else self._run
            run(search, rows, None if target is None else target[rows.place], seed, number)

    def _run(self, search: Search, rows: Rows, target: Tensor | None, seed: int, number: int) -> None:
        """Start on the surface of the ball."""
        make = partial(surface_noise, self.norm, radius=self.eps, dtype=rows.x.dtype)
        delta = rows.feasible.project_(rows.draw(rows.x.shape[1:], make, seed, f"apgd {self.loss}", number))
        at = MomentumRun.at(search, rows, self.loss, target, delta, self.eps).without_broken(search)
        lengths = checkpoints(self.steps)
        for k in range(1, self.steps + 1):
            if not len(at.rows):
                return
            at.move(ALPHA if k > 1 else 1.0)
            at.measure(search, last=k == self.steps, exact=k >= self.steps - EXACT_STEPS)
            at = at.without_broken(search)
            at.remember()
            if k in lengths:
                at.check(lengths[k])
        search.record(at.rows, at.rows.x + at.best, at.best_logits)

    def _run_sparse(self, search: Search, rows: Rows, target: Tensor | None, seed: int, number: int) -> None:
        """Start at a normal point; go on, in a smaller ball, from the best point of the larger one.

        What is misclassified in the larger balls is not broken, and stays in the run.
        """
        make = partial(_draw_normal, dtype=rows.x.dtype)
        delta = rows.draw(rows.x.shape[1:], make, seed, f"apgd {self.loss}", number)
        for factor, steps in sparse_stages(self.steps):
            at = SparseRun.at(search, rows, self.loss, target, delta, factor, self.eps)
            at = at.without_broken(search) if factor == 1 else at
            for k in range(1, steps + 1):
                if not len(at.rows):
                    return
                at.move()
                at.measure(search, last=k == steps, exact=factor == 1 and k >= steps - EXACT_STEPS)
                at = at.without_broken(search) if factor == 1 else at
                at.remember()
                if k % max(1, int(CHECK_GAP * steps)) == 0:
                    at.check()
            delta = at.best
        search.record(at.rows, at.rows.x + at.best, at.best_logits)


def checkpoints(steps: int) -> dict[int, int]:
    """Return the steps after which a run is checked, each with the number of steps since the check before."""
    share, gap, before, lengths = 0.0, 0.22, 0, {}
    while (step := math.ceil(round((share + gap) * steps, 9))) <= steps:
        if step > before:
            lengths[step], before = step - before, step
        share, gap = share + gap, max(gap - 0.03, 0.06)
    return lengths


def sparse_stages(steps: int) -> list[tuple[float, int]]:
    """Return the balls that a run in L1 searches, in units of eps, each with its steps; if these are few, the last."""
    wide = math.ceil(WIDE_STEPS * steps)
    left = steps - len(WIDE_RADII) * wide
    return [*((radius, wide) for radius in WIDE_RADII), (1.0, left)] if left > 0 else [(1.0, steps)]


def _draw_normal(shape: Sequence[int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=dtype)
