"""Learning rates as pure functions of the training time, in epochs; the trainer asks at every iteration."""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any

from sihg.errors import InputError, UnknownNameError

Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Constant:
    """The same learning rate throughout."""

    lr: float

    def __post_init__(self) -> None:
        _check_rate("lr", self.lr)

    def __call__(self, time: float) -> float:  # noqa: ARG002
        """The learning rate at `time` epochs."""
        return self.lr


@dataclass(frozen=True)
class Cyclic:
    """Straight lines through (epoch, learning rate) points, and constant outside them.

    The paper's CIFAR-10 schedule is (0, 0), (5, 0.2), (15, 0), (20, 0.02), (30, 0). There, as with every schedule that
    starts at 0, the first iteration has the learning rate 0 exactly: it leaves the weights as they are, but the
    perturbations, the momentum and the previous gradient already move.
    """

    points: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        try:
            points = tuple((float(epoch), float(lr)) for epoch, lr in self.points)
        except (TypeError, ValueError):
            raise InputError(
                f"points must be pairs of epoch and learning rate, got {self.points!r}: write [[0, 0], [5, 0.2]]"
            ) from None
        object.__setattr__(self, "points", points)
        if not points:
            raise InputError("a cyclic schedule needs points (epoch, learning rate), got none: write points=[[0, 0.1]]")
        for epoch, lr in points:
            _check_rate("points: the epoch", epoch)
            _check_rate("points: the learning rate", lr)
        _check_rising("points", [epoch for epoch, _ in points])

    def __call__(self, time: float) -> float:
        """The learning rate at `time` epochs."""
        if time <= self.points[0][0]:
            return self.points[0][1]
        for (a, left), (b, right) in pairwise(self.points):
            if time <= b:
                return left + (right - left) * ((time - a) / (b - a)) if time < b else right
        return self.points[-1][1]


@dataclass(frozen=True)
class Triangular:
    """From 0 up to `lr` at epoch `peak`, down to 0 at `epochs`; the first iteration has the learning rate 0."""

    lr: float
    peak: float
    epochs: float

    def __post_init__(self) -> None:
        _check_rate("lr", self.lr)
        _check_number("peak", self.peak)
        _check_number("epochs", self.epochs)
        if not 0 < self.peak < self.epochs < math.inf:
            raise InputError(
                f"peak must lie between 0 and epochs = {self.epochs}, got {self.peak}: 0.4 epochs is a usual place"
            )

    def __call__(self, time: float) -> float:
        """The learning rate at `time` epochs."""
        return Cyclic(((0.0, 0.0), (self.peak, self.lr), (self.epochs, 0.0)))(time)


@dataclass(frozen=True)
class Piecewise:
    """`lr`, times `factor` from each milestone on."""

    lr: float
    milestones: Sequence[float]
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_rate("lr", self.lr)
        _check_rate("factor", self.factor)
        try:
            object.__setattr__(self, "milestones", tuple(self.milestones))
        except TypeError:
            raise InputError(f"milestones must be a list of epochs, got {self.milestones!r}: write [30, 34]") from None
        for milestone in self.milestones:
            _check_rate("a milestone", milestone)
        _check_rising("milestones", self.milestones)

    def __call__(self, time: float) -> float:
        """The learning rate at `time` epochs."""
        return self.lr * self.factor ** sum(time >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `lr` down to 0 at `epochs`, after a straight warm-up from 0 over `warmup` epochs."""

    lr: float
    epochs: float
    warmup: float = 0.0

    def __post_init__(self) -> None:
        _check_rate("lr", self.lr)
        _check_number("warmup", self.warmup)
        _check_number("epochs", self.epochs)
        if not 0 <= self.warmup < self.epochs < math.inf:
            raise InputError(f"warmup must be >= 0 and < epochs = {self.epochs}, got {self.warmup}: lower it")

    def __call__(self, time: float) -> float:
        """The learning rate at `time` epochs."""
        if time < self.warmup:
            return self.lr * max(time, 0.0) / self.warmup
        done = (time - self.warmup) / (self.epochs - self.warmup)
        return self.lr * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2


@dataclass(frozen=True)
class Stretched:
    """A schedule written for `over` epochs, in a run of `epochs`."""

    schedule: Schedule
    over: float
    epochs: float

    def __post_init__(self) -> None:
        _check_number("over", self.over)
        if not 0 < self.over < math.inf:
            raise InputError(f"over must be a number of epochs > 0, got {self.over}: correct it")

    def __call__(self, time: float) -> float:
        """The learning rate at `time` epochs."""
        return self.schedule(time * self.over / self.epochs)


SCHEDULES: dict[str, type[Constant | Triangular | Cyclic | Piecewise | Cosine]] = {
    "constant": Constant,
    "triangular": Triangular,
    "cyclic": Cyclic,
    "piecewise": Piecewise,
    "cosine": Cosine,
}


def build(name: str, lr: float, epochs: float, *, over: float | None = None, **options: Any) -> Schedule:
    """The schedule of that name for a run of `epochs`; `options` are its other fields, such as peak or milestones.

    They are written for a run of `over` epochs (default: this one), and stretched where it is another. The points of
    `cyclic` are learning rates as they are, so `lr` must be the highest of them.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, list(SCHEDULES))
    if over is not None:
        return Stretched(build(name, lr, over, **options), over, epochs)
    kind = SCHEDULES[name]
    given: dict[str, Any] = {"lr": lr, "epochs": epochs}
    known = {field.name: field.default is MISSING for field in fields(kind)}
    free = [option for option in known if option not in given]
    for option in options:
        if option not in free:
            choices = f"choose from {', '.join(free)}" if free else "leave it out"
            raise InputError(f"the {name} schedule has no option {option!r}: {choices}")
    for option in free:
        if known[option] and option not in options:
            raise InputError(f"the {name} schedule needs the option {option!r}, which is missing: set it")
    schedule = kind(**{key: value for key, value in given.items() if key in known}, **options)
    if isinstance(schedule, Cyclic) and lr != max(rate for _, rate in schedule.points):
        highest = max(rate for _, rate in schedule.points)
        raise InputError(f"lr = {lr} is not the highest learning rate of the points, {highest}: make them agree")
    return schedule


def _check_rate(what: str, value: float) -> None:
    _check_number(what, value)
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{what} must be finite and >= 0, got {value}: correct it")


def _check_number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} must be a number, got {value!r}: correct it")


def _check_rising(what: str, epochs: Sequence[float]) -> None:
    for a, b in pairwise(epochs):
        if b <= a:
            raise InputError(f"the epochs of {what} must rise, got {a} before {b}: sort them, each once")
