"""Auto-PGD (Croce and Hein, 2020): ascent with momentum that halves its step where progress is too slow."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from sihg.errors import UnknownNameError
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.search import EXACT_STEPS, Rows, Search, true_places
from sihg.robust.gradients import DLR_CLASSES, Loss, cross_entropy_per_row, targeted_dlr, wrong_classes
from sihg.robust.threat import surface_noise

LOSSES = ("ce", "dlr-t")
ALPHA, RHO = 0.75, 0.75  # the share of the new direction, and of steps that must raise the loss


@dataclass(frozen=True, kw_only=True, eq=False)
class APGD(Attack):
    """Raise the cross-entropy (`ce`), or the targeted difference-of-logits ratio (`dlr-t`), with steps that adapt.

    With fewer than four classes, which the ratio needs, `dlr-t` takes the difference of logits alone. Where nothing is
    found, x_adv is the point of smallest margin among the best points of the runs.

    Args:
        loss: ce or dlr-t.
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
        if self.loss == "ce" or classes >= DLR_CLASSES:
            return ""
        return f"{classes} classes: the difference of two logits instead of the DLR loss, which needs {DLR_CLASSES}"

    def max_passes(self, classes: int) -> float:
        """Return a pass per step and a forward pass at the end of each run, and one at the sample."""
        runs = self.restarts * (1 if self.loss == "ce" else min(self.targets, classes - 1))
        return 1 / 3 + runs * (self.steps + 1 / 3)

    def search(self, search: Search, seed: int) -> None:
        """Run for each target, each on the rows that are not broken yet."""
        targets: tuple[Tensor | None, ...] = (None,)
        logits = search.record_clean()
        if self.loss == "dlr-t":
            targets = wrong_classes(logits, search.rows.y).unbind(1)[: self.targets]
        for number, target in enumerate(target for target in targets for _ in range(self.restarts)):
            rows = search.unbroken()
            if not len(rows):
                return
            self._run(search, rows, None if target is None else target[rows.place], seed, number)

    def _run(self, search: Search, rows: Rows, target: Tensor | None, seed: int, run: int) -> None:
        at = self._begin(search, rows, target, seed, run).without_broken(search)
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

    def _begin(self, search: Search, rows: Rows, target: Tensor | None, seed: int, run: int) -> "Run":
        """Start on the surface of the ball."""
        make = partial(surface_noise, self.norm, radius=self.eps, dtype=rows.x.dtype)
        delta = rows.feasible.project_(rows.draw(rows.x.shape[1:], make, seed, f"apgd {self.loss}", run))
        logits, loss, g = search.compute_gradient(rows, rows.x + delta, objective(target))
        step = torch.full_like(loss, 2 * self.eps).view(-1, *(1,) * (delta.dim() - 1))
        return Run(
            rows=rows,
            target=target,
            delta=delta,
            previous=delta,
            g=g,
            loss=loss,
            logits=logits,
            best=delta.clone(),
            best_g=g.clone(),
            best_loss=loss.clone(),
            best_logits=logits.clone(),
            step=step,
            rises=torch.zeros_like(loss),
            checked_loss=loss,
            halved=torch.ones_like(loss, dtype=torch.bool),
        )


@dataclass
class Run:
    """A run on rows that are not broken: the last two points, the best point, and the progress since the last check."""

    rows: Rows
    target: Tensor | None
    delta: Tensor
    previous: Tensor
    g: Tensor
    loss: Tensor
    logits: Tensor
    best: Tensor
    best_g: Tensor
    best_loss: Tensor
    best_logits: Tensor
    step: Tensor
    rises: Tensor  # steps since the last check after which the loss was higher
    checked_loss: Tensor  # the best loss at the last check
    halved: Tensor  # whether the last check halved the step

    def without_broken(self, search: Search) -> "Run":
        """Return the run without the rows that are broken now."""
        held = search.record_broken(self.rows, self.rows.x + self.delta, self.logits)
        if held is None:
            return self
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        kept = {name: value.index_select(0, held) for name, value in tensors.items()}
        return Run(**{"rows": self.rows.take(held), "target": None, **kept})

    def move(self, alpha: float) -> None:
        """Step along the gradient and a part of the last move; changes the gradient in place."""
        feasible = self.rows.feasible
        ahead = feasible.climb_(self.delta.clone(), self.g, self.step)
        mixed = ahead.mul_(alpha).add_(self.delta, alpha=2 - 2 * alpha).sub_(self.previous, alpha=1 - alpha)
        self.previous, self.delta = self.delta, feasible.project_(mixed)

    def measure(self, search: Search, *, last: bool, exact: bool) -> None:
        """Compute the loss at the current point, and its gradient unless no step follows; if `exact`, in float32."""
        before, point, loss = self.loss, self.rows.x + self.delta, objective(self.target)
        if last:
            self.logits = search.compute_logits(self.rows, point)
            self.loss = loss(self.logits, self.rows.y).to(before)
        else:
            self.logits, self.loss, self.g = search.compute_gradient(self.rows, point, loss, exact=exact)
        self.rises = self.rises + (self.loss > before)

    def remember(self) -> None:
        """Keep the current point of each row whose loss is the highest so far."""
        _replace(
            self.loss > self.best_loss,
            (self.best, self.delta),
            (self.best_g, self.g),
            (self.best_loss, self.loss),
            (self.best_logits, self.logits),
        )

    def check(self, length: int) -> None:
        """Where too few of the last `length` steps raised the loss, or none its maximum, halve the step and go back to
        the best point.
        """
        stuck = ~self.halved & (self.checked_loss >= self.best_loss)
        self.halved = (self.rises < RHO * length) | stuck
        self.checked_loss, self.rises = self.best_loss.clone(), torch.zeros_like(self.rises)
        pairs = (
            (self.delta, self.best),
            (self.g, self.best_g),
            (self.loss, self.best_loss),
            (self.step, self.step / 2),
        )
        _replace(self.halved, *pairs)


def _replace(where: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """Replace, in each pair, the rows of the first tensor by those of the second where the mask is true."""
    if where.device.type == "cpu":
        places = true_places(where)
        for old, new in pairs:
            old[places] = new[places]
        return
    for old, new in pairs:  # which rows these are, a device would be waited for
        old.copy_(torch.where(where.view(-1, *(1,) * (old.dim() - 1)), new, old))


def checkpoints(steps: int) -> dict[int, int]:
    """Return the steps after which a run is checked, each with the number of steps since the check before."""
    share, gap, before, lengths = 0.0, 0.22, 0, {}
    while (step := math.ceil(round((share + gap) * steps, 9))) <= steps:
        if step > before:
            lengths[step], before = step - before, step
        share, gap = share + gap, max(gap - 0.03, 0.06)
    return lengths


def objective(target: Tensor | None) -> Loss:
    """Return the loss of each row that a run raises."""
    return cross_entropy_per_row if target is None else partial(targeted_dlr, target)
