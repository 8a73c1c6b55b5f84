"""The smallest eps at which each sample falls, and the accuracy at any radius that follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch import Tensor, nn

from sihg.core.processes import ALONE, Processes
from sihg.core.threads import use_threads
from sihg.errors import InputError
from sihg.parse import Number, parse_number
from sihg.robust.attacks.nearest import plan_nearest
from sihg.robust.attacks.registry import attack_names
from sihg.robust.attacks.replaced_gradients import Bpda
from sihg.robust.data.samples import open_samples
from sihg.robust.evaluation.evaluate import resume_task
from sihg.robust.evaluation.findings import Findings, describe_ball, draw_curves
from sihg.robust.evaluation.progress import Progress
from sihg.robust.evaluation.task import Task, make_task
from sihg.robust.threat import Ball, Bounds
from sihg.store.schema import CurveRow, MinimumRecord, MinimumRow
from sihg.store.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_ATTACKS = ("fab-t", "pgd-20")
RADII = 61  # of the curve in the record
SHOWN_RADII = 5  # that `print` gives the accuracy at
ALL = "all"  # the nearest point that any of the attacks found


@dataclass(frozen=True, eq=False, repr=False)
class MinimumNorms(Findings):
    """The smallest eps found per sample. `print` shows quantiles, `plot` the curve, `save` writes the record.

    Args:
        *: Those of Findings; `minimum_eps` gives them.
    Example:
        >>> import sihg
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> found = sihg.minimum_eps(torch.nn.Flatten(), data, max_eps=1, attacks="deepfool")
        >>> found.distances.round(decimals=2)
        tensor([0.4500, 0.4500, 0.4500, 0.4500])
        >>> found.accuracy(0.4), found.accuracy(0.5)
        (1.0, 0.0)
    """

    keeps_nearest: ClassVar[bool] = True

    @property
    def max_eps(self) -> float:
        """The largest distance that was searched."""
        return self.ball.eps

    @property
    def distances(self) -> Tensor:
        """Per sample the norm of the smallest perturbation found: 0 if misclassified without, inf if none was found."""
        return torch.stack([outcome.distance for outcome in self.outcomes]).amin(0)

    @property
    def attacks(self) -> list[str]:
        """Per sample the attack that found the smallest perturbation, the first of several; "" where none did."""
        names = [outcome.attack for outcome in self.outcomes]
        first = torch.stack([outcome.distance for outcome in self.outcomes]).argmin(0)
        found = self.distances.isfinite()
        return [
            names[which] if is_found else "" for which, is_found in zip(first.tolist(), found.tolist(), strict=True)
        ]

    def accuracy(self, eps: Number) -> float:
        """Return the share of samples without a misclassified point within eps, which is at most max_eps."""
        radius = parse_number(eps, "eps")
        if not 0 <= radius <= self.max_eps:
            raise InputError("radius-not-searched", eps=radius, max_eps=self.max_eps)
        return _share_beyond(self.distances, radius)

    def rows(self) -> tuple[MinimumRow, ...]:
        """Return a row per attack, and one for the nearest points of all if there are several."""
        return tuple(
            MinimumRow(
                attack=name,
                samples=len(distance),
                found=int(distance.isfinite().sum()),
                mean=_finite(distance.double().mean()),
                lower_quartile=_quantile(distance, 0.25),
                median=_quantile(distance, 0.5),
                upper_quartile=_quantile(distance, 0.75),
                **costs,
            )
            for name, distance, costs in self._columns()
        )

    @property
    def radii_of_curve(self) -> tuple[float, ...]:
        """The radii of the curve in the record and in the figure, from 0 to max_eps."""
        return tuple(self.max_eps * i / (RADII - 1) for i in range(RADII))

    def curves(self) -> tuple[CurveRow, ...]:
        """Return the accuracy at each radius of the curve, with its 95 % interval, for each of `rows`."""
        curves = []
        for name, distance, costs in self._columns():
            accuracy = [_share_beyond(distance, radius) for radius in self.radii_of_curve]
            intervals = [wilson(round(share * len(distance)), len(distance)) for share in accuracy]
            low, high = (tuple(ends) for ends in zip(*intervals, strict=True))
            curves.append(CurveRow(attack=name, accuracy=tuple(accuracy), low=low, high=high, **costs))
        return tuple(curves)

    def _columns(self) -> list[tuple[str, Tensor, dict[str, Any]]]:
        """Return name, distances and costs of each attack, and of all together."""
        fields = ("passes", "forwards", "seconds")
        columns = [(o.attack, o.distance, {name: getattr(o, name) for name in fields}) for o in self.outcomes]
        if len(columns) > 1:
            together = {name: sum(costs[name] for *_, costs in columns) for name in fields}
            columns.append((ALL, self.distances, together))
        return columns

    @property
    def record(self) -> MinimumRecord:
        """What NAME.json holds."""
        return MinimumRecord(
            **msgspec.structs.asdict(self.header),
            max_eps=self.max_eps,
            minimum=self.rows(),
            eps=self.radii_of_curve,
            curves=self.curves(),
            checks=self.checks,
            environment=self.environment,
        )

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw accuracy against the radius with its 95 % interval; save the figure if there is a path."""
        return draw_curves(self.curves(), self.radii_of_curve, self.ball.norm, path, marker="")

    def _summary(self) -> str:
        names = ", ".join(outcome.attack for outcome in self.outcomes)
        median = self.rows()[-1].median
        return f"median {_cell(median, self.max_eps)} by {names}; {describe_ball(self.ball)}"

    def __str__(self) -> str:
        most = self.max_eps
        about = f"(smallest eps; {self.ball.norm}, at most {most:g}, {len(self.labels)} samples)"
        lines = [f"{'attack':<12} {'found':>7} {'quartile':>10} {'median':>10} {'quartile':>10} {'mean':>10}   {about}"]
        for row in self.rows():
            cells = [_cell(size, most) for size in (row.lower_quartile, row.median, row.upper_quartile, row.mean)]
            lines.append(f"{row.attack:<12} {row.found:>7} {' '.join(f'{cell:>10}' for cell in cells)}")
        for i in range(SHOWN_RADII):
            radius = most * i / (SHOWN_RADII - 1)
            lines.append(f"accuracy at eps {radius:<8.4g} {100 * self.accuracy(radius):>7.2f} %")
        return "\n".join([*lines, *self._notes(self.curves())])


def minimum_eps(
    model: nn.Module,
    data: object,
    *,
    max_eps: Number,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    attacks: str | Sequence[str] = DEFAULT_ATTACKS,
    samples: int | None = None,
    seed: int = 0,
    bpda: Bpda | None = None,
    eot: int = 1,
    votes: int | None = None,
    batch_size: int | None = None,
    trained_with: str | None = None,
    points: bool = False,
    resume: str | Path | None = None,
    workers: int = 0,
    threads: int = 1,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> MinimumNorms:
    """Find for each sample the smallest eps at which an attack breaks it, up to `max_eps`.

    Every distance is that of a point which a float32 pass of the model misclassifies: an upper bound of the true one.
    All arguments but these two are those of `evaluate`.

    Args:
        max_eps: The largest distance to search, such as 0.5 or "16/255".
        attacks: Names: fab-t[-T[-R]], deepfool[-T] and cw[-T] go on to the nearest point; pgd-T[-R] is repeated with a
            radius of its own for each sample, by bisection. Each attacks all samples, and the nearest point counts.
    Returns:
        The MinimumNorms: distances per sample, the accuracy at any radius, and checks.
    Raises:
        InputError: As in `evaluate`, or an attack gives no smallest distances.
    Example:
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> minimum_eps(nn.Flatten(), data, max_eps=2, norm="l2", attacks="deepfool").distances.round(decimals=2)
        tensor([0.6400, 0.6400, 0.6400, 0.6400])
    """
    ball = Ball(parse_number(max_eps, "max_eps"), norm, bounds)
    arguments = (model, open_samples(data), plan_nearest(attack_names(attacks), ball), ball, (), samples, seed)
    how: dict[str, Any] = {"last_iterate": False, "bpda": bpda, "eot": eot, "votes": votes, "batch_size": batch_size}
    with use_threads(threads):
        task = make_task(*arguments, trained_with, **how, workers=workers, processes=processes)
        task = as_minimum(task, f"minimum_{task.name}")
        result = resume_task(task, resume, points, progress, processes)
    assert isinstance(result, MinimumNorms)
    return result


def as_minimum(task: Task, name: str) -> Task:
    """Return a task whose attacks are those of `plan_nearest` as one that looks for smallest distances."""
    return replace(task, kind=MinimumNorms, name=name)


def _share_beyond(distances: Tensor, radius: float) -> float:
    return int((distances > radius).sum()) / len(distances)


def _quantile(distances: Tensor, share: float) -> float | None:
    """Return the quantile, the larger of two distances between which it lies; None beyond what was searched."""
    return _finite(distances.double().quantile(share, interpolation="higher"))


def _finite(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None


def _cell(size: float | None, most: float) -> str:
    return f"> {most:.4g}" if size is None else f"{size:.4g}"
