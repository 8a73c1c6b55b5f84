"""A comparison of methods on one problem: what it runs, what it keeps in its folder, how it goes on."""

import csv
import io
import json
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from typing import Any

import msgspec
import torch

from sihg.errors import InputError, SihgError
from sihg.minimax import Box, History, Problem, Progress, Result, SolveState, measure, solve, zoo
from sihg.minimax.layout import flat
from sihg.minimax.solve import check_suits
from sihg.minimax.solvers import method_class
from sihg.store.environment import describe_environment
from sihg.store.files import write_text

SECONDS_BETWEEN_SAVES = 30.0

Show = Callable[[int, str], None]
Point = tuple[float, float, float]  # iteration, w, delta


@dataclass
class Comparison:
    """The settings of a comparison and the rows of its summary so far."""

    problem: str
    options: dict[str, Any]
    methods: list[str]
    iterations: int
    seed: int
    tolerance: float | None
    record_every: int
    steps: dict[str, float]
    folder: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.record_every < 1:
            raise InputError(f"record_every must be >= 1, got {self.record_every}")
        self.methods = list(dict.fromkeys(self.methods))
        if not self.methods:
            raise InputError("no method named: `sihg solve --list` shows what there is")
        kinds = {name: method_class(name) for name in self.methods}
        for key in self.steps:
            if not any(key in {setting.name for setting in fields(kind)} for kind in kinds.values()):
                raise InputError(f"none of {', '.join(kinds)} has a setting {key!r}: leave it out")
        self.benchmark = _build(self.problem, self.options)
        for name, kind in kinds.items():
            check_suits(self.benchmark.problem, name, kind)

    @staticmethod
    def new(
        *, record_every: int | None, folder: Path | None, overwrite: bool, iterations: int, **rest: Any
    ) -> "Comparison":
        """A comparison from the start; its folder must be free."""
        if folder and not overwrite:
            _check_free(folder)
        every = max(1, min(iterations // 500, 100)) if record_every is None else record_every
        made = Comparison(record_every=every, folder=folder, iterations=iterations, **rest)
        if folder:
            for name in made.methods:
                for file in ("state.safetensors", "history.json", "row.json"):
                    (folder / name / file).unlink(missing_ok=True)
            made._save_config()
        return made

    @staticmethod
    def resumed(folder: Path, iterations: int | None) -> "Comparison":
        """The comparison in a folder, to go on."""
        config = _read_json(folder / "config.json")
        try:
            made = Comparison(folder=folder, **config)
        except TypeError as error:
            raise InputError(f"{folder / 'config.json'} is not a solve's ({error}): --resume takes one") from error
        if iterations is not None:
            made.iterations = iterations
            made._save_config()
        return made

    def run(self, name: str, show: Show) -> dict[str, Any]:
        """Run one method, or what is left of it, showing progress; give its row of the summary."""
        row = self._finished(name) or self._run(name, show)
        self.rows.append(row)
        return row

    def _run(self, name: str, show: Show) -> dict[str, Any]:
        state, history, path = self._earlier(name)
        watch = _Watch(self, name, show, history, path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = solve(
                    self.benchmark.problem,
                    name,
                    iterations=self.iterations - (state.iteration if state else 0),
                    tolerance=self.tolerance,
                    seed=self.seed,
                    record_every=self.record_every,
                    callback=watch,
                    state=state,
                    **self._steps_of(name),
                )
            except Exception as error:
                if isinstance(error, SihgError) or ":" not in self.problem:
                    raise
                raise InputError(f"{name} on {self.problem}: {error!r}: correct the problem") from error
        history.about |= result.history.about
        history.extend(result.history)
        result = replace(result, history=history)
        watch.save(result.state, history)
        row = self._row(name, result, list(dict.fromkeys(str(warning.message) for warning in caught)))
        if self.folder:
            write_text(self.folder / name / "row.json", json.dumps(row, indent=1, allow_nan=False))
        return row

    def _steps_of(self, name: str) -> dict[str, Any]:
        """The step sizes given that the method has."""
        has = {setting.name for setting in fields(method_class(name))}
        return {key: value for key, value in self.steps.items() if key in has}

    def _finished(self, name: str) -> dict[str, Any] | None:
        """The row of a method that has nothing left to do, from an earlier run."""
        path = self.folder / name / "row.json" if self.folder else None
        if path is None or not path.exists():
            return None
        row: dict[str, Any] = _read_json(path)
        ended = row["stopped"].startswith(("tolerance", "diverged")) or row["iterations"] >= self.iterations
        return row if ended else None

    def _earlier(self, name: str) -> tuple[SolveState | None, History, list[Point]]:
        """What an interrupted run of this method left: rows after its saved state, or off the beat, are made anew."""
        start = (0.0, float(self.benchmark.problem.w0[0]), float(self.benchmark.problem.delta0[0]))
        history, path = History(), [start] if self.flat else []
        if not self.folder or not (self.folder / name / "state.safetensors").exists():
            return None, history, path
        state = SolveState.load(self.folder / name / "state.safetensors")
        saved = History.load(self.folder / name / "history.json")
        for row in saved.rows():
            if row["iteration"] <= state.iteration and row["iteration"] % self.record_every == 0:
                history.append(row)
        if self.flat:
            file = self.folder / name / "trajectory.csv"
            try:
                rows = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
                path = [(float(k), float(w), float(d)) for k, w, d in rows if int(k) <= state.iteration]
                if len(path) != state.iteration + 1:
                    raise ValueError(f"{len(path)} of {state.iteration + 1} points")
            except (OSError, ValueError) as error:
                raise InputError(f"{file} cannot be read ({error}): solve again with --overwrite") from error
        return state, history, path

    @property
    def flat(self) -> bool:
        """Whether the problem has one number in w and one in delta, so that it can be drawn in a plane."""
        return self.benchmark.problem.w0.numel() == 1 and self.benchmark.problem.delta0.numel() == 1

    def _row(self, name: str, result: Result, caught: list[str]) -> dict[str, Any]:
        problem, solution = self.benchmark.problem, self.benchmark.solution
        norm_squared = measure.saddle_norm_squared(problem, result.w, result.delta)
        if len(result.history) and result.history["iteration"][-1] == result.state.iteration:
            norm_squared = result.history["saddle_norm_squared"][-1]
        distance = bound = None
        if solution is not None:
            distance = measure.distance(problem, result.w, result.delta, *solution)
            if name in ("ssi-hg", "dsi-hg") and result.steps.theta == 1:
                whole = name == "dsi-hg"
                bound = measure.explicit_bound(
                    problem, *solution, result.steps.sigma, result.steps.tau, one_block=whole
                )
        method = result.state.method
        return {
            "method": name,
            "iterations": result.state.iteration,
            "w_gradients": result.state.w_gradients,
            "delta_gradients": result.state.delta_gradients,
            "seconds": result.state.seconds,
            "saddle_norm_squared": _finite(norm_squared),
            "distance": _finite(distance),
            "sigma": result.steps.sigma,
            "tau": result.steps.tau,
            "theta": getattr(method, "theta", None),
            "source": result.steps.source,
            "bound": _finite(bound),
            "stopped": result.stopped,
            "warnings": caught,
        }

    def summary(self) -> dict[str, Any]:
        """All that is known at the end; also written to the folder."""
        problem = self.benchmark.problem
        summary = {
            "problem": self.problem,
            "about": self.benchmark.about,
            "options": self.options,
            "n": problem.n,
            "dimension_w": problem.w0.numel(),
            "dimension_delta": problem.delta0.numel(),
            "seed": self.seed,
            "iterations": self.iterations,
            "command": self._command(),
            "environment": msgspec.to_builtins(
                describe_environment(threads=torch.get_num_threads(), dtype=str(problem.w0.dtype))
            ),
            "methods": self.rows,
        }
        if self.folder:
            write_text(self.folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False))
            if self.flat:
                write_text(self.folder / "field.json", json.dumps(_field(self), allow_nan=False))
        return summary

    def _command(self) -> str:
        words = [
            "sihg",
            "solve",
            self.problem,
            "--method",
            ",".join(self.methods),
            "--iterations",
            str(self.iterations),
        ]
        words += ["--seed", str(self.seed), "--record-every", str(self.record_every)]
        words += [word for key, value in self.options.items() for word in ("--set", f"{key}={value}")]
        words += [word for key, value in self.steps.items() for word in (f"--{key}", repr(value))]
        words += ["--tolerance", repr(self.tolerance)] if self.tolerance is not None else []
        return shlex.join(words)

    def _save_config(self) -> None:
        names = ("problem", "options", "methods", "iterations", "seed", "tolerance", "record_every", "steps")
        assert self.folder is not None
        write_text(self.folder / "config.json", json.dumps({name: getattr(self, name) for name in names}, indent=1))


class _Watch:
    """The callback of a running method: progress, the path through the plane, a save now and then."""

    def __init__(self, comparison: Comparison, name: str, show: Show, history: History, path: list[Point]) -> None:
        self.comparison, self.show, self.path = comparison, show, path
        self.folder = comparison.folder / name if comparison.folder else None
        self.before = history
        self.note = ""
        self.next_save = time.monotonic() + SECONDS_BETWEEN_SAVES

    def __call__(self, progress: Progress) -> None:
        if self.comparison.flat and self.folder:
            self.path.append((progress.iteration, float(progress.state.w), float(progress.state.delta)))
        if progress.row is not None:
            self.note = f"|F|^2 {progress.row['saddle_norm_squared']:.3g}"
        self.show(progress.iteration, self.note)
        if self.folder and time.monotonic() >= self.next_save:
            history = History(self.before.about)
            history.extend(self.before)
            history.extend(progress.history)
            self.save(progress.resume(), history)
            self.next_save = time.monotonic() + SECONDS_BETWEEN_SAVES

    def save(self, state: SolveState, history: History) -> None:
        """Keep what was reached; the state last, since rows beyond it are dropped when the run goes on."""
        if self.folder is None:
            return
        if self.comparison.flat:
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            table.writerow(("iteration", "w", "delta"))
            table.writerows((int(k), repr(w), repr(d)) for k, w, d in self.path)
            write_text(self.folder / "trajectory.csv", text.getvalue())
        history.save(self.folder / "history.json")
        history.save(self.folder / "history.csv")
        state.save(self.folder / "state.safetensors")


def _check_free(folder: Path) -> None:
    """Refuse to write over somebody's files."""
    if (folder / "config.json").exists():
        raise InputError(f"{folder} holds an earlier solve: choose another folder, --overwrite it, or --resume it")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not an empty folder: choose another, or --overwrite what is of the same name")


def _build(name: str, options: dict[str, Any]) -> zoo.Benchmark:
    """A problem of the zoo, or what a user's own callable gives."""
    make = partial(zoo.get, name) if ":" not in name else _own(name)
    try:
        made = make(**options)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name} cannot be built with {options or 'no options'} ({error!r}): see --set") from error
    if isinstance(made, Problem):
        return zoo.Benchmark(name, "a problem of your own", made, None)
    if isinstance(made, zoo.Benchmark):
        return made
    raise InputError(f"problem {name!r} gives a {type(made).__name__}: it must give a sihg.Problem or a zoo Benchmark")


def _own(name: str) -> Callable[..., object]:
    """The callable that package.module:callable or path.py:callable names; the current folder counts too."""
    module, _, attribute = name.rpartition(":")
    sys.path.insert(0, str(Path(module).parent if module.endswith(".py") else Path.cwd()))
    try:
        made = getattr(import_module(Path(module).stem if module.endswith(".py") else module), attribute)
    except Exception as error:
        raise InputError(f"problem {name!r} cannot be loaded ({error!r}): name package.module:callable") from error
    finally:
        sys.path.pop(0)
    if not callable(made):
        raise InputError(f"problem {name!r} is a {type(made).__name__}: name a callable that gives a sihg.Problem")
    return made  # type: ignore[no-any-return]


def _field(comparison: Comparison) -> dict[str, Any]:
    """The direction (-grad_w, +grad_delta) over the box, or where it is open, around the start and the solution."""
    problem, solution = comparison.benchmark.problem, comparison.benchmark.solution
    answer = None if solution is None else [float(flat(solution.w)), float(flat(solution.delta))]
    size = 1.6 * max(map(abs, (0.1, float(problem.w0), float(problem.delta0), *(answer or ()))))
    box = [*_sides(problem.f), *_sides(problem.g)]
    low_w, high_w, low_d, high_d = (
        side if isfinite(side) else edge for side, edge in zip(box, (-size, size) * 2, strict=True)
    )
    ws = torch.linspace(low_w, high_w, 25, dtype=problem.w0.dtype)
    ds = torch.linspace(low_d, high_d, 25, dtype=problem.w0.dtype)
    rows = [[problem.gradients(w[None], d[None]) for w in ws] for d in ds]
    return {
        "w": ws.tolist(),
        "delta": ds.tolist(),
        "dw": [[_finite(-float(g_w)) for g_w, _ in row] for row in rows],
        "ddelta": [[_finite(float(g_d)) for _, g_d in row] for row in rows],
        "solution": answer,
        "box": box if all(map(isfinite, box)) else None,
    }


def _sides(function: object) -> tuple[float, float]:
    return (float(function.lower), float(function.upper)) if isinstance(function, Box) else (-inf, inf)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): --resume takes a folder made with --out") from error


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
