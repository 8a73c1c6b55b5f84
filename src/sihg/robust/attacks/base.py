"""What all attacks share: how they are called, the rows they look at together, what they find."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.core.draw import generator
from sihg.errors import InputError, NotFiniteError
from sihg.robust.gradients import Loss, inner_mode
from sihg.robust.threat import Ball, Bounds, Feasible

DRAWN = 64  # rows whose draws come from one generator, so that draws do not depend on what is attacked at once
SLACK = 1e-5  # of eps: what rounding may add to a distance
VALUES, MOST = 1024 * 784, 1024  # values of x, and rows, attacked at once: measured, see benchmarks/attack_speed.py


Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an attack found, for each row, and the passes it took."""

    x_adv: Tensor
    broken: Tensor  # whether x_adv is misclassified
    prediction: Tensor  # the class of x_adv
    margin: Tensor  # at x_adv: the logit of the label minus the largest other one
    passes: int  # forward and backward passes of one sample
    forwards: int  # forward passes of one sample without a backward one
    classes: int  # that the model tells apart


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples under attack together."""

    x: Tensor
    y: Tensor
    feasible: Feasible  # the deltas allowed for each
    number: Tensor  # of each row in the user's data: decides its draws, and names it in errors
    place: Tensor  # of each row among those that the search began with

    def __len__(self) -> int:
        return len(self.y)

    def keep(self, index: Tensor) -> "Rows":
        """Those at these places."""
        x, y, number, place = (rows.index_select(0, index) for rows in (self.x, self.y, self.number, self.place))
        return Rows(x, y, self.feasible.rows(index), number, place)

    def draw(self, shape: Sequence[int], make: Draw, seed: int, what: str, run: int = 0) -> Tensor:
        """What `make` draws for each row, of this shape: it depends on the row's number, not on its company."""
        out, block = self.x.new_empty(len(self), *shape), self.number // DRAWN
        for one in block.unique().tolist():
            mine = (block == one).nonzero().flatten()
            drawn = make((DRAWN, *shape), generator(seed, what, run, one))
            out[mine] = drawn.to(out)[self.number[mine] % DRAWN]
        return out


class Search:
    """The attack on some rows: asks the model, counts the passes, keeps what is found."""

    def __init__(self, model: nn.Module, rows: Rows) -> None:
        self.model, self.rows = model, rows
        self.x_adv = rows.x.clone()
        self.broken = torch.zeros(len(rows), dtype=torch.bool, device=rows.x.device)
        self.prediction = rows.y.clone()
        self.margin = torch.full_like(rows.y, math.inf, dtype=rows.x.dtype)
        self.passes = self.forwards = self.classes = 0

    def left(self) -> Rows:
        """The rows that hold so far."""
        return self.rows.keep(places(~self.broken)) if bool(self.broken.any()) else self.rows

    def begin(self) -> Tensor:
        """Look at the samples as they are, which counts; the logits."""
        logits = self.look(self.rows, self.rows.x)
        self.keep(self.rows, self.rows.x, logits)
        return logits

    def look(self, rows: Rows, point: Tensor) -> Tensor:
        """The logits at `point`."""
        self.forwards += len(rows)
        with torch.no_grad():
            return checked(self.model(point), rows)

    def slope(self, rows: Rows, point: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """At `point`: the logits, the loss of each row, and its gradient in the input."""
        self.passes += len(rows)
        point = point.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.model(point)
            checked(logits, rows)
            losses = loss(logits, rows.y)
            (g,) = torch.autograd.grad(losses.sum(), point)
        g = g.contiguous() if 0 in g.stride() else g  # one that is expanded could not be changed in place
        if not math.isfinite(float(g.sum())) and not bool(torch.isfinite(g).all()):  # a sum takes one reading
            row = int((~torch.isfinite(g.flatten(1)).all(1)).nonzero()[0])
            raise NotFiniteError(
                f"the model's gradient at row {int(rows.number[row])} is not finite: look for a root, a logarithm or a "
                "norm of zero in its forward"
            )
        return logits.detach(), losses.detach().to(g), g

    def keep(self, rows: Rows, point: Tensor, logits: Tensor) -> None:
        """Note `point` where it is misclassified, or its margin is smaller than what is known of the row."""
        self.classes = logits.shape[1]
        prediction, margin = logits.argmax(1), margins(logits, rows.y).to(self.margin)
        better = (prediction != rows.y) | (margin < self.margin[rows.place])
        place = rows.place[better]
        self.x_adv[place], self.margin[place] = point[better], margin[better]
        self.prediction[place], self.broken[place] = prediction[better], (prediction != rows.y)[better]

    def drop(self, rows: Rows, point: Tensor, logits: Tensor) -> Tensor | None:
        """Keep the rows that are misclassified at `point`; the places of those that hold, or None if all do."""
        wrong = misclassified(logits, rows.y)
        if not bool(wrong.any()):
            return None
        lost = places(wrong)
        self.keep(rows.keep(lost), point[lost], logits[lost])
        return places(~wrong)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack(ABC):
    """A search for misclassified points of the ball around each sample."""

    eps: float
    norm: str = "linf"
    bounds: Bounds = (0.0, 1.0)
    ball: Ball = field(init=False, repr=False)
    proves: ClassVar[bool] = False  # rather the other way round: what it does not break is proven to hold

    def __post_init__(self) -> None:
        object.__setattr__(self, "ball", Ball(self.eps, self.norm, self.bounds))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
        """The attacked x: where the model errs, the first point found; elsewhere the best one."""
        return self.run(model, x, y, seed).x_adv

    def run(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        seed: int = 0,
        progress: Callable[[int], object] = lambda _done: None,
        *,
        numbers: Tensor | None = None,
    ) -> Verdict:
        """Attack every row of x; `progress` hears how many rows are done.

        Where x is a part of a larger set, `numbers` are those of its rows there: they decide the draws, so that parts
        give what the whole would.
        """
        check_module(model)
        numbers = torch.arange(len(x)) if numbers is None else numbers
        check_batch(x, y, numbers)
        x, y, numbers = x.detach(), y.long(), numbers.to(x.device)
        size, found = rows_at_once(x.shape[1:]), []
        with self.mode(model):
            for done in range(0, max(len(x), 1), size):
                part = slice(done, done + size)
                place = torch.arange(len(x[part]), device=x.device)
                rows = Rows(x[part], y[part], self.ball.around(x[part]), numbers[part], place)
                found.append(Search(model, rows))
                if len(rows):
                    self.search(found[-1], seed)
                progress(min(done + size, len(x)))
        return Verdict(
            self.ball.clip(torch.cat([one.x_adv for one in found])),
            torch.cat([one.broken for one in found]),
            torch.cat([one.prediction for one in found]),
            torch.cat([one.margin for one in found]),
            sum(one.passes for one in found),
            sum(one.forwards for one in found),
            max(one.classes for one in found),
        )

    def mode(self, model: nn.Module) -> AbstractContextManager[None]:
        """How the model is attacked."""
        return inner_mode(model, "running")

    def check(self, model: nn.Module, x: Tensor) -> None:  # noqa: B027
        """Refuse a model that the attack is not for, before others have taken their time; `x` is a sample."""

    def remark(self, classes: int) -> str:  # noqa: ARG002
        """What a reader of the result should know where there are so many classes."""
        return ""

    @abstractmethod
    def search(self, search: Search, seed: int) -> None:
        """Attack the rows of one search."""


def rows_at_once(shape: Sequence[int]) -> int:
    """How many samples of this shape to attack at once, a multiple of DRAWN."""
    return max(DRAWN, min(MOST, VALUES // max(1, math.prod(shape)) // DRAWN * DRAWN))


def places(mask: Tensor) -> Tensor:
    """Where it is true: taking rows by number is faster than by mask."""
    return mask.nonzero().flatten()


def misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """Which rows the model gets wrong."""
    return logits.detach().argmax(1) != y


def margins(logits: Tensor, y: Tensor) -> Tensor:
    """The logit of the label minus the largest other one."""
    own = logits.gather(1, y[:, None])
    others = logits.scatter(1, y[:, None], -math.inf)
    return own.squeeze(1) - others.amax(1)


def others(logits: Tensor, y: Tensor) -> Tensor:
    """The classes besides the label, (n, classes - 1), the most likely first."""
    own_first = logits.scatter(1, y[:, None], math.inf)
    return own_first.argsort(dim=1, descending=True, stable=True)[:, 1:]


def checked(logits: Tensor, rows: Rows) -> Tensor:
    """The logits; what is no logit, or a label without one, is an error."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        what = logits.dtype if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise InputError(f"the model gives {what}: it must give logits, floats of shape (n, classes)")
    values, y = logits.detach(), rows.y
    if values.dim() != 2 or len(values) != len(y):
        raise InputError(
            f"the model gives an output of shape {tuple(values.shape)} for {len(y)} samples: it must be (n, classes)"
        )
    if not bool(torch.isfinite(values).all()):
        raise NotFiniteError(
            "the model gives logits that are not finite: look at its weights and at the scale of its input"
        )
    if int(y.max()) >= values.shape[1]:
        row = int((y >= values.shape[1]).nonzero()[0])
        raise InputError(
            f"row {int(rows.number[row])} of y is {int(y[row])}, but the model has {values.shape[1]} outputs: "
            "labels count from 0"
        )
    return logits


def check_module(model: object) -> None:
    """Refuse a function, which has no mode, no state and no device."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}: give a torch.nn.Module, with yours in its forward")


def check_batch(x: Tensor, y: Tensor, numbers: Tensor) -> None:
    """Refuse what cannot be attacked, naming the row by its number."""
    if x.dim() < 2 or not math.prod(x.shape[1:]):
        raise InputError(f"x has shape {tuple(x.shape)}: give a batch, (n, ...), of at least one feature")
    if not x.is_floating_point():
        raise InputError(f"x is {x.dtype}, attacks need floats: images as x / 255")
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(
            f"y has shape {tuple(y.shape)} and type {y.dtype}: it needs one class number for each of {len(x)} rows"
        )
    if numbers.shape != x.shape[:1]:
        raise InputError(f"numbers has shape {tuple(numbers.shape)}: it needs one for each of {len(x)} rows")
    y = y.long()
    if bool((y < 0).any()):
        row = int((y < 0).nonzero()[0])
        raise InputError(f"row {int(numbers[row])} of y is {int(y[row])}: labels are whole numbers from 0 on")
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])
        raise InputError(f"row {int(numbers[row])} of x has a value that is not finite: clean the data")


def check_counts(**counts: int) -> None:
    """Refuse what is no number of steps, runs, queries."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number >= 1, got {value!r}: give 1 or more")


def check_points(name: str, ball: Ball, x: Tensor, x_adv: Tensor, numbers: Tensor) -> None:
    """Refuse points that an attacker may not give: not finite, outside the ball or the bounds."""
    if not bool(torch.isfinite(x_adv).all()):
        row = int((~torch.isfinite(x_adv.flatten(1)).all(1)).nonzero()[0])
        raise InputError(f"{name} gives a point that is not finite for row {int(numbers[row])}: mend the attack")
    order = math.inf if ball.norm == "linf" else 2
    far = torch.linalg.vector_norm((x_adv - x).flatten(1), ord=order, dim=1)
    sizes = torch.linalg.vector_norm(x.flatten(1), ord=order, dim=1)
    over = far - ball.eps * (1 + SLACK) - 8 * torch.finfo(x.dtype).eps * sizes
    if len(x) and float(over.max()) > 0:
        row = int(over.argmax())
        raise InputError(
            f"{name} gives a point {float(far[row]):g} from row {int(numbers[row])}, more than eps {ball.eps:g}: "
            "mend the attack, or give the eps it has"
        )
    if not torch.equal(ball.clip(x_adv), x_adv):
        row = int((ball.clip(x_adv) != x_adv).flatten(1).any(1).nonzero()[0])
        raise InputError(
            f"{name} gives a point outside the bounds for row {int(numbers[row])}: mend the attack, or give the bounds "
            "it keeps"
        )
