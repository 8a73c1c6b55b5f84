"""Projected gradient ascent on the still-unbroken samples only."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sihg.core.draw import generator
from sihg.errors import InputError, NotFiniteError
from sihg.robust.ball import Ball, Bounds, Feasible
from sihg.robust.passes import evaluating, summed

DRAWN = 64  # rows whose starts come from one generator, so that starts do not depend on what is attacked at once
VALUES, MOST = 400_000, 1024  # values of x, and rows, attacked at once: by measurement, see benchmarks/attack_speed.py


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an attack found: the attacked points, which of them are misclassified, and the passes it took."""

    x_adv: Tensor
    broken: Tensor
    passes: int  # forward-backward passes of one sample; the last look at a run's end, a lone forward, is not counted


@dataclass(frozen=True, kw_only=True, eq=False)
class PGD:
    """T steepest ascent steps on the cross-entropy from a random start, R times: PGD-T-R.

    A sample is broken when it is misclassified at any iterate, the start included; it leaves the batch at once, and
    later runs see survivors only. With `last_iterate` only the end of a run counts, the classical rule. `restarts`
    counts runs.
    """

    eps: float
    steps: int = 20
    restarts: int = 1
    norm: str = "linf"
    step_size: float | None = None  # default 2.5 eps / steps
    bounds: Bounds = (0.0, 1.0)
    last_iterate: bool = False
    random_start: bool = True
    ball: Ball = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("restarts", self.restarts)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    f"{name} must be a whole number >= 1, got {value!r}: PGD-20 has 20 steps and 1 restart"
                )
        if self.step_size is not None and not 0 < self.step_size < float("inf"):
            raise InputError(
                f"step_size must be finite and > 0, got {self.step_size}: leave it out for 2.5 eps / steps"
            )
        object.__setattr__(self, "ball", Ball(self.eps, self.norm, self.bounds))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
        """The attacked x: where the model errs, the first point found; elsewhere the end of the last run."""
        return self.run(model, x, y, seed).x_adv

    def run(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        seed: int = 0,
        progress: Callable[[int], object] = lambda _done: None,
        *,
        first: int = 0,
    ) -> Verdict:
        """Attack every row of x; `progress` hears how many rows are done.

        Where x is a part of a larger set, `first` is the number there of its first row, a multiple of 64: numbers
        decide the draws, so that parts give what the whole would.
        """
        if first % DRAWN:
            raise InputError(f"first must be a multiple of {DRAWN}, got {first}: cut the rows at such numbers")
        check_batch(x, y, first)
        x, y = x.detach(), y.long()
        x_adv, broken, passes = torch.empty_like(x), torch.zeros(len(x), dtype=torch.bool, device=x.device), 0
        with evaluating(model):
            size = rows_at_once(x.shape[1:])
            for done in range(0, len(x), size):
                rows = slice(done, done + size)
                x_adv[rows], broken[rows], some = self._chunk(model, x[rows], y[rows], seed, first + done)
                passes += some
                progress(min(done + size, len(x)))
        return Verdict(self.ball.clip(x_adv), broken, passes)

    def _chunk(self, model: nn.Module, x: Tensor, y: Tensor, seed: int, first: int) -> tuple[Tensor, Tensor, int]:
        feasible = self.ball.around(x)
        x_adv, broken, passes = x.clone(), torch.zeros(len(x), dtype=torch.bool, device=x.device), 0
        for run in range(self.restarts):
            left = (~broken).nonzero().flatten()
            if not len(left):
                break
            delta = self._start(feasible, x, seed, run, first)
            done = self._run(model, x[left], y[left], delta[left], feasible.rows(left), first)
            for rows, points, wrong, cost in done:
                x_adv[left[rows]] = points
                broken[left[rows]] |= wrong
                passes += cost
        return x_adv, broken, passes

    def _run(
        self, model: nn.Module, x: Tensor, y: Tensor, delta: Tensor, feasible: Feasible, first: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        """One run; yields (rows, points, whether they are broken, passes) of rows as they are done."""
        rows, eta = torch.arange(len(x), device=x.device), self.step_size or 2.5 * self.eps / self.steps
        for _ in range(self.steps):
            point = (x + delta).requires_grad_()
            with torch.enable_grad():
                logits = model(point)
                wrong = misclassified(logits, y, first)
                (g,) = torch.autograd.grad(summed(logits, y), point)
            if self.last_iterate or not bool(wrong.any()):
                yield rows[:0], x[:0], wrong[:0], len(rows)
            else:
                yield rows[wrong], point.detach()[wrong], wrong[wrong], len(rows)
                on = ~wrong
                rows, x, y, delta, g, feasible = rows[on], x[on], y[on], delta[on], g[on], feasible.rows(on)
                if not len(rows):
                    return
            feasible.climb_(delta, g, eta)
        with torch.no_grad():
            point = x + delta
            yield rows, point, misclassified(model(point), y), 0

    def _start(self, feasible: Feasible, x: Tensor, seed: int, run: int, first: int) -> Tensor:
        if not self.random_start:
            return torch.zeros_like(x)
        starts = []
        for block in torch.arange(len(x), device=x.device).split(DRAWN):
            draw = generator(seed, "attack start", run, (first + int(block[0])) // DRAWN)
            starts.append(feasible.rows(block).noisy(None, self.eps, draw))
        return torch.cat(starts)


def rows_at_once(shape: Sequence[int]) -> int:
    """How many samples of this shape to attack at once, a multiple of DRAWN."""
    return max(DRAWN, min(MOST, VALUES // max(1, math.prod(shape)) // DRAWN * DRAWN))


def misclassified(logits: Tensor, y: Tensor, first: int = 0) -> Tensor:
    """Which rows the model gets wrong; what is no logit or no label is an error. Row 0 is number `first` for users."""
    logits = logits.detach()
    if logits.dim() != 2 or len(logits) != len(y):
        raise InputError(
            f"the model gives an output of shape {tuple(logits.shape)} for {len(y)} samples: it must be (n, classes)"
        )
    if not bool(torch.isfinite(logits).all()):
        raise NotFiniteError(
            "the model gives logits that are not finite: look at its weights and at the scale of its input"
        )
    if len(y) and int(y.max()) >= logits.shape[1]:
        row = int((y >= logits.shape[1]).nonzero()[0])
        raise InputError(
            f"row {first + row} of y is {int(y[row])}, but the model has {logits.shape[1]} outputs: labels count from 0"
        )
    return logits.argmax(1) != y


def check_batch(x: Tensor, y: Tensor, first: int = 0) -> None:
    """Refuse what cannot be attacked, naming the row; row 0 is number `first` for users."""
    if x.dim() < 2:
        raise InputError(f"x has shape {tuple(x.shape)}: give a batch, (n, ...), of at least one feature")
    if not x.is_floating_point():
        raise InputError(f"x is {x.dtype}, attacks need floats: images as x / 255")
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(
            f"y has shape {tuple(y.shape)} and type {y.dtype}: it needs one class number for each of {len(x)} rows"
        )
    if bool((y < 0).any()):
        row = int((y < 0).nonzero()[0])
        raise InputError(f"row {first + row} of y is {int(y[row])}: labels are whole numbers from 0 on")
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])
        raise InputError(f"row {first + row} of x has a value that is not finite: clean the data")
