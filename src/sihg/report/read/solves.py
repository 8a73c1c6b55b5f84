"""Read the folder of `sihg solve --out`: summary, histories, trajectories, field."""

from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

import msgspec
import numpy as np

from sihg.errors import InputError
from sihg.report.read.evaluations import Floats
from sihg.store.files import status
from sihg.store.schema import SEALED_FORMAT, SolveField, SolveRow, SolveSummary, read_record
from sihg.store.tables import read_table

REMEDY = "run `sihg solve ... --out DIR` again and report on its DIR"


class _History(msgspec.Struct):
    """METHOD/history.json: the recorded rows, by column."""

    columns: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True, eq=False)
class Curve:
    """The recorded rows of a method; `value` is ||F||^2, infinite where it was not finite."""

    iteration: Floats
    gradients: Floats
    value: Floats

    @property
    def mean(self) -> Floats:
        """The running average of ||F||^2 over the iterations after the first row; infinite at that row itself.

        Between recorded rows ||F||^2 is taken as linear, so the average is exact if every iteration was recorded.
        """
        if not len(self.value):
            return self.value
        steps, before, after = np.diff(self.iteration), self.value[:-1], self.value[1:]
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.cumsum(np.where(steps > 1, before * (steps - 1) / 2, 0) + after * (steps + 1) / 2)
            mean = total / np.cumsum(steps)
        return np.concatenate([[inf], np.where(np.isfinite(mean), mean, inf)])


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One method on the problem: its row of the summary, its curve, and its path if the problem is a plane."""

    row: SolveRow
    curve: Curve
    path: Floats | None

    @property
    def mean(self) -> float | None:
        """The average of ||F||^2 over all iterations; None if it is not finite or nothing was recorded."""
        last = self.curve.mean[-1:]
        return float(last[0]) if last.size and isfinite(last[0]) else None

    @property
    def guarantee(self) -> float | None:
        """Theorem 1's bound on the expectation of that average."""
        row = self.row
        return row.bound / row.iterations if row.bound is not None and row.iterations else None


@dataclass(frozen=True, eq=False)
class Solved:
    """All that a solve folder says."""

    summary: SolveSummary
    methods: tuple[MethodRun, ...]
    field: SolveField | None


def read_solved(folder: Path) -> Solved:
    """Read a solve folder; an error names the missing or damaged file and what to do."""
    source = folder / "summary.json"
    summary = read_record(source, SolveSummary, REMEDY)
    if not summary.methods:
        raise _damaged(source, "it lists no methods")
    sealed = summary.format >= SEALED_FORMAT
    in_plane = status(folder / "field.json") is not None and summary.dimension_w == summary.dimension_delta == 1
    return Solved(
        summary,
        tuple(_method(folder, row, in_plane=in_plane, sealed=sealed) for row in summary.methods),
        _field(folder / "field.json") if in_plane else None,
    )


def _method(folder: Path, row: SolveRow, *, in_plane: bool, sealed: bool) -> MethodRun:
    if Path(row.method).name != row.method:
        raise _damaged(folder / "summary.json", f"method {row.method!r} cannot be the name of a folder")
    numbers = ("saddle_norm_squared", "distance", "sigma", "tau", "theta", "bound")
    bad = {name: None for name in numbers if not isfinite(getattr(row, name) or 0.0)}
    home = folder / row.method
    path = _path(home / "trajectory.csv", row.iterations, sealed=sealed) if in_plane else None
    return MethodRun(msgspec.structs.replace(row, **bad) if bad else row, _curve(home / "history.json"), path)


def _curve(source: Path) -> Curve:
    columns = read_record(source, _History, REMEDY).columns
    if not columns:  # nothing was recorded
        return Curve(*3 * (np.empty(0),))
    names = ("iteration", "w_gradients", "delta_gradients", "saddle_norm_squared")
    if missing := [name for name in names if name not in columns]:
        raise _damaged(source, f"it has no column {missing[0]}")
    iteration, of_w, of_delta, value = (np.array(columns[name], dtype=np.float64) for name in names)  # null: NaN
    if len({len(iteration), len(of_w), len(of_delta), len(value)}) > 1 or np.any(np.diff(iteration) <= 0):
        raise _damaged(source, "its columns differ in length, or its iterations do not increase")
    return Curve(iteration, of_w + of_delta, np.where(np.isfinite(value), value, inf))


def _path(source: Path, iterations: int, *, sealed: bool) -> Floats:
    """Read the points (w, delta) of a trajectory."""
    try:
        rows = read_table(source, sealed=sealed)
        if len(rows) <= iterations:
            raise ValueError(f"it has {len(rows)} points, not {iterations + 1}")
        return np.array([[float(row["w"]), float(row["delta"])] for row in rows]).reshape(-1, 2)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise _damaged(source, f"as a trajectory: {getattr(error, 'strerror', None) or error}") from error


def _field(source: Path) -> SolveField:
    record = read_record(source, SolveField, REMEDY)
    w, delta = record.w, record.delta
    widths = {len(row) for row in (*record.dw, *record.ddelta)}
    if len(delta) < 2 or len(w) < 2 or widths != {len(w)} or not len(record.dw) == len(record.ddelta) == len(delta):
        raise _damaged(source, "dw and ddelta need a row for each delta and a column for each w, at least 2")
    if np.any(np.diff(w) <= 0) or np.any(np.diff(delta) <= 0):
        raise _damaged(source, "the grid w or delta does not increase")
    if not np.isfinite([*(record.solution or ()), *(record.box or ())]).all():
        raise _damaged(source, "its solution or its box is not finite")
    return record


def _damaged(source: Path, reason: str) -> InputError:
    return InputError("solve-damaged", path=source, reason=reason)
