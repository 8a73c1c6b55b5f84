"""The fast adaptive boundary attack: from hyperplane to hyperplane towards the nearest misclassified point."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sihg.parse import ORDERS
from sihg.robust.attacks._hyperplane import shortest_steps
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.search import Search
from sihg.robust.gradients import logit_difference, margins, wrong_classes
from sihg.robust.threat import uniform_noise, vector_norms
from sihg.robust.waits import upload

ALPHA_MAX, ETA, BETA = 0.1, 1.05, 0.9  # the paper's: most pull towards x, overshoot, step back
VALUES_PER_BLOCK = 64_000  # of x, in rows whose arithmetic is done together: about what a cache holds
REACH = 1000  # times eps: points further away are useless, and without bounds the plane of a flat model is very far


@dataclass(frozen=True, kw_only=True, eq=False)
class FAB(Attack):
    """FAB-T (Croce and Hein, 2020): T iterations towards each of the likeliest wrong classes t, R times.

    Untargeted (FAB), t is in each iteration the class with the nearest hyperplane, which costs a pass per wrong class.
    An iteration linearises z_t - z_y at x', and goes a bit beyond the hyperplane where that vanishes:

        δ', δ = the shortest steps from x' and from x to the hyperplane within the bounds
        α = min(|δ'| / (|δ'| + |δ|), 0.1)
        x' <- clip((1 - α) (x' + 1.05 δ') + α (x + 1.05 δ))
        x' <- x + 0.9 (x' - x) if x' is misclassified

    The first run starts at x, others at random points of half the ball. The paper seeks the nearest misclassified
    point; here any within eps breaks a sample, which then leaves the batch at once. Where nothing is found, x_adv is
    the point of the ball with the smallest margin.

    Args:
        steps: The iterations T of a run.
        restarts: The runs R per target, the first included.
        targets: The likeliest wrong classes to aim at, one after the other.
        targeted: Aim at one class at a time; else at the nearest of all.
    Raises:
        InputError: If a setting is out of range.
    Example:
        >>> attack = FAB(eps=0.1, steps=10)
        >>> attack(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    searches_fast: ClassVar[bool] = True
    takes_targets: ClassVar[bool] = True
    uses_gradients: ClassVar[bool | None] = True

    steps: int = 100
    restarts: int = 1
    targets: int = 9
    targeted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts, targets=self.targets)

    @property
    def uses_margin(self) -> bool:
        """Whether it compares logits: those of the label and of each target."""
        return True

    def max_passes(self, classes: int) -> float:
        """Return a pass and a forward pass per step, and a forward pass at the sample; untargeted, a pass per class."""
        if not self.targeted:
            return 1 / 3 + self.restarts * self.steps * (classes - 1 + 1 / 3)
        return 1 / 3 + min(self.targets, classes - 1) * self.restarts * self.steps * 4 / 3

    def search(self, search: Search, seed: int) -> None:
        """Run R times for each target, or for all together, each on the rows that are not broken yet."""
        wrong, chosen = wrong_classes(search.record_clean(), search.rows.y), search.rows.target
        aims = wrong[:, : self.targets].split(1, 1) if self.targeted else (wrong,)
        aims = aims if chosen is None else (chosen[:, None],)
        if not wrong.shape[1]:  # one class
            return
        for run in range(len(aims) * self.restarts):
            rows = search.unbroken()
            if not len(rows):
                return
            self._approach(search, rows, aims[run // self.restarts][rows.place], self._start(rows, seed, run))

    def _approach(self, search: Search, rows: Rows, target: Tensor, point: Tensor) -> None:
        """Iterate; `target` has one class or several per row."""
        for _ in range(self.steps):
            logits, f, w = self._linearise(search, rows, target, point)
            held = search.record_within(rows, point, logits)
            if held is not None:
                rows = rows.take(held)
                target, point, f, w = (tensor.index_select(0, held) for tensor in (target, point, f, w))
                if not len(rows):
                    return
            point = self._step(rows.x, point, f, w)
            logits = search.compute_logits(rows, point, exact=False)
            held = search.record_within(rows, point, logits)
            if held is not None:
                rows = rows.take(held)
                target, point, logits = (tensor.index_select(0, held) for tensor in (target, point, logits))
                if not len(rows):
                    return
            wrong = rows.breaks(logits)
            if wrong.device.type != "cpu":  # which a mask as an index would wait for
                inner = rows.x + BETA * (point - rows.x)
                point = torch.where(wrong.view(-1, *(1,) * (point.dim() - 1)), inner, point)
                continue
            point[wrong] = rows.x[wrong] + BETA * (point[wrong] - rows.x[wrong])

    def _linearise(self, search: Search, rows: Rows, target: Tensor, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits at `point`, and z_t - z_y with its gradient for the class t whose hyperplane is nearest."""
        first, *others = target.unbind(1)
        loss = logit_difference if rows.target is None else _lead
        logits, f, w = search.compute_gradient(rows, point, partial(loss, first))
        for other in others:
            _, g, v = search.compute_gradient(rows, point, partial(logit_difference, other))
            nearer = g.abs() * self._dual_lengths(w) < f.abs() * self._dual_lengths(v)
            f, w = torch.where(nearer, g, f), torch.where(nearer.view(-1, *(1,) * (w.dim() - 1)), v, w)
        return logits, f, w

    def _dual_lengths(self, w: Tensor) -> Tensor:
        """Return the dual norm of each row: the distance to the plane f + w d = 0 is |f| over it."""
        order = {"linf": 1.0, "l2": 2.0, "l1": math.inf}[self.norm]
        return vector_norms(w.flatten(1), order)

    def _step(self, x: Tensor, point: Tensor, f: Tensor, w: Tensor) -> Tensor:
        """Iterate once, from the value f and the gradient w of z_t - z_y at `point`; by blocks, for the cache."""
        size = max(1, VALUES_PER_BLOCK // math.prod(x.shape[1:]))
        blocks = zip(*(rows.split(size) for rows in (x, point, f, w)), strict=True)
        return torch.cat([self._step_block(*block) for block in blocks])

    def _step_block(self, x: Tensor, point: Tensor, f: Tensor, w: Tensor) -> Tensor:
        low, high, w = (rows.flatten(1) for rows in (*self._box(x), w))
        ends = torch.stack((point.flatten(1), x.flatten(1)))
        c = torch.stack((-f, (w * (ends[0] - ends[1])).sum(1) - f))
        d = shortest_steps(w, c, low - ends, high - ends, self.norm)
        here, there = self._lengths(d).clamp_(min=torch.finfo(d.dtype).tiny)
        alpha = (here / (here + there)).clamp_(max=ALPHA_MAX)
        ends.add_(d, alpha=ETA)
        new = ends[0].lerp_(ends[1], alpha[:, None])
        return torch.clamp(new, low, high, out=new).view(point.shape)

    def _box(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the box to search: within the bounds, and not too far from x."""
        low, high = x - REACH * self.eps, x + REACH * self.eps
        if self.bounds is None:
            return low, high
        least, most = (upload(b.to(x.dtype), x.device) if isinstance(b, Tensor) else b for b in self.bounds)
        return low.clamp_(min=least), high.clamp_(max=most)

    def _start(self, rows: Rows, seed: int, run: int) -> Tensor:
        if run % self.restarts == 0:
            return rows.x
        make = partial(uniform_noise, self.norm, radius=self.eps / 2, dtype=rows.x.dtype)
        return self.ball.clip(rows.x + rows.draw(rows.x.shape[1:], make, seed, "FAB start", run))

    def _lengths(self, steps: Tensor) -> Tensor:
        return vector_norms(steps, ORDERS[self.norm])


def _lead(target: Tensor, logits: Tensor, _y: Tensor) -> Tensor:
    """Return, per row, the logit of the target minus the largest other one."""
    return margins(logits, target)
