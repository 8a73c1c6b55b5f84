"""The fast adaptive boundary attack: from hyperplane to hyperplane towards the nearest misclassified point."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sihg.robust.attacks._hyperplane import shortest
from sihg.robust.attacks.base import Attack, Rows, Search, check_counts, margins, misclassified, others, places
from sihg.robust.threat import uniform_noise

ALPHA_MAX, ETA, BETA = 0.1, 1.05, 0.9  # the paper's: most pull towards x, overshoot, step back
BLOCK = 64_000  # values of x in a block of rows whose arithmetic is done together: about what a cache holds
REACH = 1000  # times eps: further away nothing is of use, and without bounds the plane of a flat model is very far


@dataclass(frozen=True, kw_only=True, eq=False)
class FAB(Attack):
    """FAB-T (Croce & Hein 2020): T iterations towards each of the likeliest wrong classes t, R times.

    An iteration linearises z_t - z_y at x', and goes a bit beyond the hyperplane where that vanishes:

        δ', δ = the shortest steps from x' and from x to the hyperplane within the bounds
        α = min(|δ'| / (|δ'| + |δ|), 0.1)
        x' <- clip((1 - α) (x' + 1.05 δ') + α (x + 1.05 δ))
        x' <- x + 0.9 (x' - x) if x' is misclassified

    The first of `restarts` runs starts at x, others at random points of half the ball. The paper seeks the nearest
    misclassified point; here a sample is broken by any within eps, and then leaves the batch at once. Where nothing
    is found, the point of the ball with the smallest margin is given.
    """

    steps: int = 100
    restarts: int = 1
    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts, targets=self.targets)

    def search(self, search: Search, seed: int) -> None:
        """R runs for each target, each on those that hold."""
        targets = others(search.begin(), search.rows.y)[:, : self.targets]
        for run in range(targets.shape[1] * self.restarts):
            rows = search.left()
            if not len(rows):
                return
            self._approach(search, rows, targets[rows.place, run // self.restarts], self._start(rows, seed, run))

    def _approach(self, search: Search, rows: Rows, target: Tensor, point: Tensor) -> None:
        for _ in range(self.steps):
            logits, f, w = search.slope(rows, point, partial(_lead, target))
            held = self._drop(search, rows, point, logits)
            if held is not None:
                rows = rows.keep(held)
                target, point, f, w = (of_all.index_select(0, held) for of_all in (target, point, f, w))
                if not len(rows):
                    return
            point = self._step(rows.x, point, f, w)
            logits = search.look(rows, point)
            held = self._drop(search, rows, point, logits)
            if held is not None:
                rows = rows.keep(held)
                target, point, logits = (of_all.index_select(0, held) for of_all in (target, point, logits))
                if not len(rows):
                    return
            wrong = misclassified(logits, rows.y)
            point[wrong] = rows.x[wrong] + BETA * (point[wrong] - rows.x[wrong])

    def _step(self, x: Tensor, point: Tensor, f: Tensor, w: Tensor) -> Tensor:
        """One iteration, from the value and the gradient of z_t - z_y at `point`; block by block, for the cache."""
        size = max(1, BLOCK // math.prod(x.shape[1:]))
        blocks = zip(*(rows.split(size) for rows in (x, point, f, w)), strict=True)
        return torch.cat([self._mixed(*block) for block in blocks])

    def _mixed(self, x: Tensor, point: Tensor, f: Tensor, w: Tensor) -> Tensor:
        low, high, w = (rows.flatten(1) for rows in (*self._box(x), w))
        ends = torch.stack((point.flatten(1), x.flatten(1)))
        c = torch.stack((-f, (w * (ends[0] - ends[1])).sum(1) - f))
        d = shortest(w, c, low - ends, high - ends, self.norm)
        here, there = self._lengths(d).clamp_(min=torch.finfo(d.dtype).tiny)
        alpha = (here / (here + there)).clamp_(max=ALPHA_MAX)
        ends.add_(d, alpha=ETA)
        new = ends[0].lerp_(ends[1], alpha[:, None])
        return torch.clamp(new, low, high, out=new).view(point.shape)

    def _drop(self, search: Search, rows: Rows, point: Tensor, logits: Tensor) -> Tensor | None:
        """Keep points of the ball that are misclassified or closest to it; where rows hold, or None if all do."""
        wrong = misclassified(logits, rows.y)
        inside = self._lengths((point - rows.x).flatten(1)) <= self.eps
        best = inside & (wrong | (margins(logits, rows.y) < search.margin[rows.place]))
        if bool(best.any()):
            search.keep(rows.keep(places(best)), point[best], logits[best])
        return places(~(wrong & inside)) if bool((wrong & inside).any()) else None

    def _box(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where to search: within the bounds, and not too far from x."""
        low, high = x - REACH * self.eps, x + REACH * self.eps
        if self.bounds is None:
            return low, high
        least, most = (torch.as_tensor(b, dtype=x.dtype, device=x.device) for b in self.bounds)
        return torch.maximum(low, least), torch.minimum(high, most)

    def _start(self, rows: Rows, seed: int, run: int) -> Tensor:
        if run % self.restarts == 0:
            return rows.x

        def near(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
            return uniform_noise(self.norm, shape, self.eps / 2, draw, rows.x.dtype)

        return self.ball.clip(rows.x + rows.draw(rows.x.shape[1:], near, seed, "FAB start", run))

    def _lengths(self, steps: Tensor) -> Tensor:
        return steps.abs().amax(-1) if self.norm == "linf" else torch.linalg.vector_norm(steps, dim=-1)


def _lead(target: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """How far the target is above the label."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)
