"""Auto-PGD (Croce and Hein, 2020): ascent with momentum that halves its own step where it does not pay."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sihg.errors import UnknownNameError
from sihg.robust.attacks.base import Attack, Rows, Search, check_counts, others
from sihg.robust.gradients import Loss, cross_entropy_per_row
from sihg.robust.threat import uniform_noise

LOSSES = ("ce", "dlr-t")
ALPHA, RHO = 0.75, 0.75  # the share of the new direction, and of the steps that must rise
DLR_CLASSES = 4  # that the ratio looks at


@dataclass(frozen=True, kw_only=True, eq=False)
class APGD(Attack):
    """APGD on the cross-entropy (`ce`), or on the targeted difference-of-logits ratio (`dlr-t`).

    The targeted one runs once for each of the `targets` classes that the model holds most likely besides the label.
    With fewer than four classes, which the ratio needs, it takes the difference of logits alone. `restarts` counts
    runs. Where nothing is found, the point of smallest margin among the best ones of the runs is given.
    """

    loss: str = "ce"
    steps: int = 100
    restarts: int = 1
    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts, targets=self.targets)
        if self.loss not in LOSSES:
            raise UnknownNameError("loss", self.loss, list(LOSSES))

    def remark(self, classes: int) -> str:
        """Whether the ratio has too few classes."""
        if self.loss == "ce" or classes >= DLR_CLASSES:
            return ""
        return f"{classes} classes: the difference of two logits instead of the DLR loss, which needs {DLR_CLASSES}"

    def search(self, search: Search, seed: int) -> None:
        """Run after run, each on those that hold."""
        targets: tuple[Tensor | None, ...] = (None,)
        logits = search.begin()
        if self.loss == "dlr-t":
            targets = others(logits, search.rows.y).unbind(1)[: self.targets]
        for number, target in enumerate(target for target in targets for _ in range(self.restarts)):
            rows = search.left()
            if not len(rows):
                return
            self._run(search, rows, None if target is None else target[rows.place], seed, number)

    def _run(self, search: Search, rows: Rows, target: Tensor | None, seed: int, run: int) -> None:
        at = self._begin(search, rows, target, seed, run).held(search)
        lengths = checkpoints(self.steps)
        for k in range(1, self.steps + 1):
            if not len(at.rows):
                return
            at.move(ALPHA if k > 1 else 1.0)
            at.measure(search, last=k == self.steps)
            at = at.held(search)
            at.remember()
            if k in lengths:
                at.check(lengths[k])
        search.keep(at.rows, at.rows.x + at.best, at.best_logits)

    def _begin(self, search: Search, rows: Rows, target: Tensor | None, seed: int, run: int) -> "Run":
        """On the surface of the ball."""

        def anywhere(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
            drawn = uniform_noise(self.norm, shape, 1.0, draw, rows.x.dtype)
            order = math.inf if self.norm == "linf" else 2
            lengths = torch.linalg.vector_norm(drawn.flatten(1), ord=order, dim=1)
            return drawn.mul_(self.eps / lengths.view(-1, *(1,) * (drawn.dim() - 1)))

        start = rows.draw(rows.x.shape[1:], anywhere, seed, f"apgd {self.loss}", run)
        delta = rows.feasible.project_(start)
        logits, loss, g = search.slope(rows, rows.x + delta, objective(target))
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
            checked=loss,
            halved=torch.ones_like(loss, dtype=torch.bool),
        )


@dataclass
class Run:
    """A run on rows that hold: where each is and was, where it was best, and how it has fared since the last check."""

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
    checked: Tensor  # the best loss at the last check
    halved: Tensor  # whether the last check halved the step

    def held(self, search: Search) -> "Run":
        """The run without the rows that are broken now."""
        held = search.drop(self.rows, self.rows.x + self.delta, self.logits)
        if held is None:
            return self
        mine: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        some = {name: value.index_select(0, held) for name, value in mine.items()}
        return Run(**{"rows": self.rows.keep(held), "target": None, **some})

    def move(self, alpha: float) -> None:
        """A step along the gradient, mixed with the last move; eats the gradient."""
        feasible = self.rows.feasible
        ahead = feasible.climb_(self.delta.clone(), self.g, self.step)
        mixed = ahead.mul_(alpha).add_(self.delta, alpha=2 - 2 * alpha).sub_(self.previous, alpha=1 - alpha)
        self.previous, self.delta = self.delta, feasible.project_(mixed)

    def measure(self, search: Search, *, last: bool) -> None:
        """The loss where the run is now, and its gradient unless no step follows."""
        before, point, loss = self.loss, self.rows.x + self.delta, objective(self.target)
        if last:
            self.logits = search.look(self.rows, point)
            self.loss = loss(self.logits, self.rows.y).to(before)
        else:
            self.logits, self.loss, self.g = search.slope(self.rows, point, loss)
        self.rises = self.rises + (self.loss > before)

    def remember(self) -> None:
        """Keep what is better than the best so far."""
        better = (self.loss > self.best_loss).nonzero().flatten()
        for best, now in (
            (self.best, self.delta),
            (self.best_g, self.g),
            (self.best_loss, self.loss),
            (self.best_logits, self.logits),
        ):
            best[better] = now[better]

    def check(self, length: int) -> None:
        """After so many steps: where too few rose, or the best is an old one, go back to it with half the step."""
        stuck = ~self.halved & (self.checked >= self.best_loss)
        self.halved = (self.rises < RHO * length) | stuck
        self.checked, self.rises = self.best_loss.clone(), torch.zeros_like(self.rises)
        back = self.halved.nonzero().flatten()
        self.delta[back], self.g[back], self.loss[back] = self.best[back], self.best_g[back], self.best_loss[back]
        self.step[back] /= 2


def checkpoints(steps: int) -> dict[int, int]:
    """The steps after which a run is checked, with the number of steps since the check before."""
    share, gap, before, lengths = 0.0, 0.22, 0, {}
    while (step := math.ceil(round((share + gap) * steps, 9))) <= steps:
        if step > before:
            lengths[step], before = step - before, step
        share, gap = share + gap, max(gap - 0.03, 0.06)
    return lengths


def objective(target: Tensor | None) -> Loss:
    """The loss of each row that the run raises."""
    return cross_entropy_per_row if target is None else lambda logits, y: ratio(logits, y, target)


def ratio(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The targeted DLR loss: the target's logit minus the label's, in units of how far the top ones are apart."""
    gap = (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)
    if logits.shape[1] < DLR_CLASSES:
        return gap
    first, _, third, fourth = logits.topk(DLR_CLASSES, dim=1).values.unbind(1)
    return gap / (first - (third + fourth) / 2 + 1e-12)
