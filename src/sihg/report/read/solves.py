"""Read the folder that `sihg solve ... --out DIR` leaves: summary, histories, trajectories, field."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.store.files import read_json

Array = NDArray[np.float64]
WHOLE = ("n", "dimension_w", "dimension_delta", "seed", "iterations")
REMEDY = "run `sihg solve ... --out DIR` again and report on its DIR"


@dataclass(frozen=True, eq=False)
class Curve:
    """The recorded rows of a method; `value` is ||F||^2, infinite where it was not finite."""

    iteration: Array
    gradients: Array
    value: Array

    @property
    def mean(self) -> Array:
        """The running average of ||F||^2 over the iterations after the first row; infinite at that row itself.

        Between recorded rows ||F||^2 is taken as linear, so it is exact where every iteration was recorded.
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
    """One method on the problem: its line of the summary, its curve, and its path where the problem is a plane."""

    method: str
    iterations: int
    w_gradients: int
    delta_gradients: int
    seconds: float
    saddle_norm_squared: float | None
    distance: float | None
    sigma: float | None
    tau: float | None
    theta: float | None
    source: str
    bound: float | None
    stopped: str
    warnings: tuple[str, ...]
    curve: Curve
    path: Array | None

    @property
    def mean(self) -> float | None:
        """The average of ||F||^2 over all iterations, None where it is not finite or nothing was recorded."""
        last = self.curve.mean[-1:]
        return float(last[0]) if last.size and isfinite(last[0]) else None

    @property
    def guarantee(self) -> float | None:
        """Theorem 1's bound on the expectation of that average."""
        return self.bound / self.iterations if self.bound is not None and self.iterations else None


@dataclass(frozen=True, eq=False)
class Field:
    """The descent-ascent direction on a grid; rows of `dw` and `ddelta` belong to `delta`."""

    w: Array
    delta: Array
    dw: Array
    ddelta: Array
    solution: tuple[float, float] | None
    box: tuple[float, float, float, float] | None


@dataclass(frozen=True, eq=False)
class Solved:
    """All that a solve folder says."""

    problem: str
    about: str
    options: Mapping[str, Any]
    n: int
    dimension_w: int
    dimension_delta: int
    seed: int
    iterations: int
    command: str
    environment: Mapping[str, Any]
    methods: tuple[MethodRun, ...]
    field: Field | None


def read_solved(folder: Path) -> Solved:
    """Read a solve folder; whatever is missing or damaged is named, with what to do."""
    source = folder / "summary.json"
    summary = read_json(source, REMEDY)
    in_plane = (folder / "field.json").exists() and summary.get("dimension_w") == summary.get("dimension_delta") == 1
    entries = _get(summary, "methods", list, source)
    if not entries:
        raise InputError(f"{source} lists no methods: {REMEDY}")
    return Solved(
        **{key: _get(summary, key, str, source) for key in ("problem", "about", "command")},
        **{key: _get(summary, key, int, source) for key in WHOLE},
        **{key: _get(summary, key, dict, source) for key in ("options", "environment")},
        methods=tuple(_method(folder, entry, source, in_plane) for entry in entries),
        field=_field(folder / "field.json") if in_plane else None,
    )


def _method(folder: Path, entry: Any, source: Path, in_plane: bool) -> MethodRun:
    if not isinstance(entry, dict):
        raise InputError(f"{source}: an entry of 'methods' is {entry!r}, not an object: {REMEDY}")
    name = _get(entry, "method", str, source)
    if Path(name).name != name:
        raise InputError(f"{source}: method {name!r} cannot be the name of a folder: {REMEDY}")
    keys = ("saddle_norm_squared", "distance", "sigma", "tau", "theta", "bound")
    numbers: dict[str, Any] = {key: _number(entry, key, source) for key in keys}
    return MethodRun(
        method=name,
        **{key: _get(entry, key, int, source) for key in ("iterations", "w_gradients", "delta_gradients")},
        seconds=float(_get(entry, "seconds", (int, float), source)),
        **numbers,
        source=_get(entry, "source", str, source),
        stopped=_get(entry, "stopped", str, source),
        warnings=tuple(str(text) for text in _get(entry, "warnings", list, source)),
        curve=_curve(folder / name / "history.json"),
        path=_path(folder / name / "trajectory.csv") if in_plane else None,
    )


def _curve(source: Path) -> Curve:
    columns = _get(read_json(source, REMEDY), "columns", dict, source)
    if not columns:  # nothing was recorded
        return Curve(*3 * (np.empty(0),))
    names = ("iteration", "w_gradients", "delta_gradients", "saddle_norm_squared")
    iteration, of_w, of_delta, value = (_array(_get(columns, name, list, source), source, name) for name in names)
    if len({len(iteration), len(of_w), len(of_delta), len(value)}) > 1 or np.any(np.diff(iteration) <= 0):
        raise InputError(f"{source}: its columns differ in length or its iterations do not increase: {REMEDY}")
    return Curve(iteration, of_w + of_delta, np.where(np.isfinite(value), value, inf))


def _path(source: Path) -> Array:
    """The points (w, delta) of a trajectory."""
    try:
        with source.open(encoding="utf-8", newline="") as file:
            return np.array([[float(row["w"]), float(row["delta"])] for row in csv.DictReader(file)]).reshape(-1, 2)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {source} as a trajectory ({_why(error)}): {REMEDY}") from error


def _field(source: Path) -> Field:
    content = read_json(source, REMEDY)
    w, delta, dw, ddelta = (_array(_get(content, k, list, source), source, k) for k in ("w", "delta", "dw", "ddelta"))
    if not dw.shape == ddelta.shape == (len(delta), len(w)) or min(dw.shape) < 2:
        raise InputError(f"{source}: dw and ddelta need a row for each delta and a column for each w, >= 2: {REMEDY}")
    if np.any(np.diff(w) <= 0) or np.any(np.diff(delta) <= 0):
        raise InputError(f"{source}: the grids w and delta must increase: {REMEDY}")
    return Field(w, delta, dw, ddelta, _corner(content, "solution", 2, source), _corner(content, "box", 4, source))


def _corner(content: dict[str, Any], key: str, size: int, source: Path) -> Any:
    """So many finite numbers, or None."""
    if content.get(key) is None:
        return None
    values = _array(_get(content, key, list, source), source, key)
    if values.shape != (size,) or not np.isfinite(values).all():
        raise InputError(f"{source}: {key} must be {size} finite numbers or null: {REMEDY}")
    return tuple(values.tolist())


def _get(record: Mapping[str, Any], key: str, kind: type | tuple[type, ...], source: Path) -> Any:
    if key not in record:
        raise InputError(f"{source} lacks {key!r}: {REMEDY}")
    if not isinstance(record[key], kind):
        raise InputError(f"{source}: {key!r} cannot be {record[key]!r}: {REMEDY}")
    return record[key]


def _number(record: Mapping[str, Any], key: str, source: Path) -> float | None:
    """A finite number; None for null and for what is not finite."""
    value = _get(record, key, (int, float, type(None)), source)
    return float(value) if value is not None and isfinite(value) else None


def _array(values: list[Any], source: Path, name: str) -> Array:
    try:
        return np.array(values, dtype=np.float64)  # null becomes nan
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: {name!r} is not made of numbers ({error}): {REMEDY}") from error


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
