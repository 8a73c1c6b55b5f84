"""Learning rates as pure functions of the training time in epochs, which the trainer calls at every step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass
from itertools import pairwise
from typing import Any

from sihg.errors import InputError, UnknownNameError
from sihg.robust.methods.settings import check_fields, match_fields, setting

Schedule = Callable[[float], float]
RATE: Any = {"about": "highest learning rate", "least": 0}
LENGTH: Any = {"about": "epochs of the run", "above": 0}


@dataclass(frozen=True)
class Constant:
    """The same learning rate throughout."""

    lr: float = setting(MISSING, **RATE)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, time: float) -> float:  # noqa: ARG002
        """Return the learning rate at `time` epochs."""
        return self.lr


@dataclass(frozen=True)
class Cyclic:
    """Straight lines through (epoch, learning rate) points, and constant outside them.

    The paper's CIFAR-10 schedule is (0, 0), (5, 0.2), (15, 0), (20, 0.02), (30, 0). A schedule that starts at 0 takes
    its first step with the learning rate 0 exactly: the weights stay, but the perturbations, the momentum and the
    previous gradient already change.
    """

    points: Sequence[tuple[float, float]] = setting(MISSING, "pairs of epoch and learning rate")

    def __post_init__(self) -> None:
        try:
            points = tuple((float(epoch), float(lr)) for epoch, lr in self.points)
        except (TypeError, ValueError):
            points = ()
        if not points or not all(0 <= number < math.inf for point in points for number in point):
            raise InputError("schedule-points", points=self.points)
        object.__setattr__(self, "points", points)
        _check_rising("points", [epoch for epoch, _ in points])

    def __call__(self, time: float) -> float:
        """Return the learning rate at `time` epochs."""
        if time <= self.points[0][0]:
            return self.points[0][1]
        for (a, left), (b, right) in pairwise(self.points):
            if time <= b:
                return left + (right - left) * ((time - a) / (b - a)) if time < b else right
        return self.points[-1][1]


@dataclass(frozen=True)
class Triangular:
    """From 0 up to `lr` at epoch `peak`, down to 0 at `epochs`; the first step has the learning rate 0."""

    lr: float = setting(MISSING, **RATE)
    peak: float = setting(MISSING, "epoch of the highest learning rate", above=0)
    epochs: float = setting(MISSING, **LENGTH)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.peak >= self.epochs:
            raise InputError("peak-range", epochs=self.epochs, peak=self.peak)

    def __call__(self, time: float) -> float:
        """Return the learning rate at `time` epochs."""
        return Cyclic(((0.0, 0.0), (self.peak, self.lr), (self.epochs, 0.0)))(time)


@dataclass(frozen=True)
class Piecewise:
    """`lr`, times `factor` from each milestone on."""

    lr: float = setting(MISSING, **RATE)
    milestones: Sequence[float] = setting(MISSING, "epochs at which the learning rate falls")
    factor: float = setting(0.1, "factor of each fall", least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        numbers = isinstance(self.milestones, list | tuple) and all(type(m) in (int, float) for m in self.milestones)
        if not numbers or not all(0 <= milestone < math.inf for milestone in self.milestones):
            raise InputError("schedule-milestones", milestones=self.milestones)
        object.__setattr__(self, "milestones", tuple(self.milestones))
        _check_rising("milestones", self.milestones)

    def __call__(self, time: float) -> float:
        """Return the learning rate at `time` epochs."""
        return self.lr * self.factor ** sum(time >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `lr` down to 0 at `epochs`, after a straight warm-up from 0 over `warmup` epochs."""

    lr: float = setting(MISSING, **RATE)
    epochs: float = setting(MISSING, **LENGTH)
    warmup: float = setting(0.0, "epochs over which the learning rate first rises from 0", least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.warmup >= self.epochs:
            raise InputError("warmup-range", epochs=self.epochs, warmup=self.warmup)

    def __call__(self, time: float) -> float:
        """Return the learning rate at `time` epochs."""
        if time < self.warmup:
            return self.lr * max(time, 0.0) / self.warmup
        done = (time - self.warmup) / (self.epochs - self.warmup)
        return self.lr * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2


@dataclass(frozen=True)
class Stretched:
    """A schedule written for `over` epochs, stretched to a run of `epochs`."""

    schedule: Schedule
    over: float = setting(MISSING, "epochs that the options are written for", above=0)
    epochs: float = setting(MISSING, **LENGTH)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, time: float) -> float:
        """Return the learning rate at `time` epochs."""
        return self.schedule(time * self.over / self.epochs)


SCHEDULES: dict[str, type[Constant | Triangular | Cyclic | Piecewise | Cosine]] = {
    "constant": Constant,
    "triangular": Triangular,
    "cyclic": Cyclic,
    "piecewise": Piecewise,
    "cosine": Cosine,
}


def build_schedule(name: str, lr: float, epochs: float, *, over: float | None = None, **options: Any) -> Schedule:
    """Build the schedule of a run of `epochs`; `options` are the other fields of the schedule, such as peak.

    They are written for a run of `over` epochs (default: `epochs`) and stretched for one of another length. With
    `cyclic`, lr must be the highest learning rate of the points.

    >>> schedule = build_schedule("triangular", 0.2, 10, peak=4)
    >>> schedule(2), schedule(4)
    (0.1, 0.2)
    """
    if over is not None:
        return Stretched(build_schedule(name, lr, over, **options), over, epochs)
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, list(SCHEDULES))
    kind = SCHEDULES[name]
    schedule: Schedule = kind(**match_fields(kind, f"schedule {name!r}", options, lr=lr, epochs=epochs))
    if isinstance(schedule, Cyclic) and lr != (highest := max(rate for _, rate in schedule.points)):
        raise InputError("lr-not-highest", highest=highest, lr=lr)
    return schedule


def _check_rising(what: str, epochs: Sequence[float]) -> None:
    for a, b in pairwise(epochs):
        if b <= a:
            raise InputError("epochs-not-rising", what=what, before=a, after=b)
