"""Runs of Auto-PGD: with momentum in linf and L2, with sparse steps in L1."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.search import Search, true_places
from sihg.robust.gradients import Loss, ascent_loss, dlr, targeted_dlr
from sihg.robust.threat import L1Set

RHO = 0.75  # the share of steps that must raise the loss
SPARSER = 0.95  # a point is sparser than another with fewer than this share of its entries
SHRINK, MAX_SHRINK = 1.5, 10.0  # in L1: what a check divides steps by, and at most in all
_Run = TypeVar("_Run", bound="Run")


@dataclass(kw_only=True)
class Run:
    """A run on rows that are not broken: the current point, the best one, and the length of steps."""

    rows: Rows
    kind: str  # of loss
    target: Tensor | None
    delta: Tensor
    g: Tensor
    loss: Tensor
    logits: Tensor
    best: Tensor
    best_g: Tensor
    best_loss: Tensor
    best_logits: Tensor
    step: Tensor

    def without_broken(self: _Run, search: Search) -> _Run:
        """Return the run without the rows that are broken now."""
        held = search.record_broken(self.rows, self.rows.x + self.delta, self.logits)
        if held is None:
            return self
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        kept = {name: value.index_select(0, held) for name, value in tensors.items()}
        return replace(self, rows=self.rows.take(held), **kept)

    def measure(self, search: Search, *, last: bool, exact: bool) -> None:
        """Compute the loss at the current point, and its gradient unless no step follows; if `exact`, in float32."""
        point, loss = self.rows.x + self.delta, objective(self.kind, self.target, self.rows.target)
        if last:
            self.logits = search.compute_logits(self.rows, point)
            self.loss = loss(self.logits, self.rows.y).to(self.loss)
        else:
            self.logits, self.loss, self.g = search.compute_gradient(self.rows, point, loss, exact=exact)

    def remember(self) -> None:
        """Keep the current point of each row whose loss is the highest so far."""
        _replace(
            self.loss > self.best_loss,
            (self.best, self.delta),
            (self.best_g, self.g),
            (self.best_loss, self.loss),
            (self.best_logits, self.logits),
        )


@dataclass(kw_only=True)
class MomentumRun(Run):
    """A run in linf or L2: the last two points, and the progress since the last check."""

    previous: Tensor
    rises: Tensor  # steps since the last check after which the loss was higher
    checked_loss: Tensor  # the best loss at the last check
    halved: Tensor  # whether the last check halved the step

    @classmethod
    def at(
        cls, search: Search, rows: Rows, kind: str, target: Tensor | None, delta: Tensor, radius: float
    ) -> "MomentumRun":
        """Start at `delta`, with steps of 2 radius."""
        first = _measure_first(search, rows, kind, target, delta, 2 * radius)
        loss = first["loss"]
        halved = torch.ones_like(loss, dtype=torch.bool)
        return cls(**first, previous=delta, rises=torch.zeros_like(loss), checked_loss=loss, halved=halved)

    def move(self, alpha: float) -> None:
        """Step along the gradient and a part of the last move; changes the gradient in place."""
        feasible = self.rows.feasible
        ahead = feasible.climb_(self.delta.clone(), self.g, self.step)
        mixed = ahead.mul_(alpha).add_(self.delta, alpha=2 - 2 * alpha).sub_(self.previous, alpha=1 - alpha)
        self.previous, self.delta = self.delta, feasible.project_(mixed)

    def measure(self, search: Search, *, last: bool, exact: bool) -> None:
        """Compute the loss at the current point as every run does, and count where it rose."""
        before = self.loss
        super().measure(search, last=last, exact=exact)
        self.rises = self.rises + (self.loss > before)

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


@dataclass(kw_only=True)
class SparseRun(Run):
    """A run in L1, in a ball of `factor` times the radius: a step moves some entries, all by the same length."""

    factor: float
    radius: float  # of the larger ball
    count: Tensor  # entries in which the best point differed from x at the last check

    @classmethod
    def at(
        cls, search: Search, rows: Rows, kind: str, target: Tensor | None, delta: Tensor, factor: float, eps: float
    ) -> "SparseRun":
        """Start at `delta`, projected onto the larger ball, with steps as long as its radius."""
        delta, radius = _widened(rows, factor).project_(delta), factor * eps
        first = _measure_first(search, rows, kind, target, delta, radius)
        return cls(**first, factor=factor, radius=radius, count=_count_entries(delta))

    def move(self) -> None:
        """Step along the signs of the largest entries of the gradient: two thirds as many as the best point has."""
        sizes = self.g.abs().flatten(1)
        features = sizes.shape[1]
        least = (features - self.count / SHRINK).long().clamp_(max=features - 1)
        moved = sizes >= sizes.sort(dim=1).values.gather(1, least[:, None])
        direction = self.g.sign().mul_(moved.view(self.g.shape))
        count = _count_entries(direction).clamp_(min=1).view(self.step.shape)
        self.delta = _widened(self.rows, self.factor).project_(self.delta + direction.mul_(self.step / count))

    def check(self) -> None:
        """Where the best point has become sparser, go there with the longest step, else shorten the step."""
        count = _count_entries(self.best)
        sparser = count < SPARSER * self.count
        step = torch.where(sparser.view(self.step.shape), self.radius, self.step / SHRINK)
        self.step, self.count = step.clamp_(min=self.radius / MAX_SHRINK), count
        _replace(sparser, (self.delta, self.best), (self.g, self.best_g), (self.loss, self.best_loss))


def objective(kind: str, target: Tensor | None, chosen: Tensor | None) -> Loss:
    """Return the loss of each row that a run raises."""
    if target is not None:
        return partial(targeted_dlr, target)
    return ascent_loss(chosen) if kind == "ce" else dlr


def _measure_first(
    search: Search, rows: Rows, kind: str, target: Tensor | None, delta: Tensor, step: float
) -> dict[str, Any]:
    """Return the fields of a run at its first point."""
    logits, loss, g = search.compute_gradient(rows, rows.x + delta, objective(kind, target, rows.target))
    best = {"best": delta.clone(), "best_g": g.clone(), "best_loss": loss.clone(), "best_logits": logits.clone()}
    now = {"rows": rows, "kind": kind, "target": target, "delta": delta, "g": g, "loss": loss, "logits": logits}
    return {**now, **best, "step": torch.full_like(loss, step).view(-1, *(1,) * (delta.dim() - 1))}


def _widened(rows: Rows, factor: float) -> L1Set:
    feasible = rows.feasible
    assert isinstance(feasible, L1Set)
    return feasible.widened(factor)


def _count_entries(delta: Tensor) -> Tensor:
    """Return, per row, how many entries are not zero."""
    return (delta != 0).flatten(1).sum(1)


def _replace(where: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """Replace, in each pair, the rows of the first tensor by those of the second where the mask is true."""
    if where.device.type == "cpu":
        places = true_places(where)
        for old, new in pairs:
            old[places] = new[places]
        return
    for old, new in pairs:  # which rows these are, a device would be waited for
        old.copy_(torch.where(where.view(-1, *(1,) * (old.dim() - 1)), new, old))
