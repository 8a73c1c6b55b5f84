"""A comparison of methods on one problem: what it runs, what it keeps in its folder, how it goes on."""

import csv
import io
import json
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from sihg.errors import InputError
from sihg.minimax import History, Problem, Progress, Result, SolveState, measure, solve, zoo
from sihg.minimax.solvers import method_class
from sihg.runs.environment import environment
from sihg.runs.files import write_text

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
        for name in self.methods:
            method_class(name)
        if not self.methods:
            raise InputError("no method named: `sihg solve --list` shows what there is")
        self.benchmark = _build(self.problem, self.options)

    @staticmethod
    def new(
        *, record_every: int | None, folder: Path | None, overwrite: bool, iterations: int, **rest: Any
    ) -> "Comparison":
        """A comparison from the start; its folder must be free."""
        if folder and (folder / "config.json").exists() and not overwrite:
            raise InputError(f"{folder} holds an earlier solve: choose another folder, --overwrite it, or --resume it")
        every = max(1, iterations // 500) if record_every is None else record_every
        made = Comparison(record_every=every, folder=folder, iterations=iterations, **rest)
        if folder:
            for name in made.methods:
                for file in ("state.safetensors", "history.json"):
                    (folder / name / file).unlink(missing_ok=True)
            made._save_config()
        return made

    @staticmethod
    def resumed(folder: Path, iterations: int | None) -> "Comparison":
        """The comparison in a folder, to go on."""
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            made = Comparison(folder=folder, **config)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path} cannot be read ({error}): --resume takes a folder made with --out") from error
        if iterations is not None:
            made.iterations = iterations
            made._save_config()
        return made

    def run(self, name: str, show: Show) -> dict[str, Any]:
        """Run one method, or what is left of it, showing progress; give its row of the summary."""
        state, history, path = self._earlier(name)
        left = max(0, self.iterations - (state.iteration if state else 0))
        watch = _Watch(self, name, show, history, path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = solve(
                self.benchmark.problem,
                name,
                iterations=left,
                tolerance=self.tolerance,
                seed=self.seed,
                record_every=self.record_every,
                callback=watch,
                state=state,
                **self.steps,  # type: ignore[arg-type]
            )
        history.about |= result.history.about
        history.extend(result.history)
        result = Result(result.w, result.delta, history, result.stopped, result.state, result.steps)
        watch.save(result.state, history)
        row = self._row(name, result, list(dict.fromkeys(str(warning.message) for warning in caught)))
        self.rows.append(row)
        return row

    def _earlier(self, name: str) -> tuple[SolveState | None, History, list[Point]]:
        """What an interrupted run of this method left: rows after its saved state, or off the beat, are made anew."""
        history, path = History(), [(0.0, float(self._w0), float(self._delta0))] if self.flat else []
        if not self.folder or not (self.folder / name / "state.safetensors").exists():
            return None, history, path
        state = SolveState.load(self.folder / name / "state.safetensors")
        saved = History.load(self.folder / name / "history.json")
        for row in saved.rows():
            if row["iteration"] <= state.iteration and row["iteration"] % self.record_every == 0:
                history.append(row)
        if self.flat:
            with (self.folder / name / "trajectory.csv").open(encoding="utf-8") as file:
                rows = [(float(k), float(w), float(d)) for k, w, d in list(csv.reader(file))[1:]]
            path = [row for row in rows if row[0] <= state.iteration]
        return state, history, path

    @property
    def flat(self) -> bool:
        """Whether the problem has one number in w and one in delta, so that it can be drawn in a plane."""
        return self.benchmark.problem.w0.numel() == 1 and self.benchmark.problem.delta0.numel() == 1

    @property
    def _w0(self) -> torch.Tensor:
        return self.benchmark.problem.w0

    @property
    def _delta0(self) -> torch.Tensor:
        return self.benchmark.problem.delta0

    def _row(self, name: str, result: Result, caught: list[str]) -> dict[str, Any]:
        problem, solution = self.benchmark.problem, self.benchmark.solution
        norm_squared = measure.saddle_norm_squared(problem, result.w, result.delta)
        if len(result.history) and result.history["iteration"][-1] == result.state.iteration:
            norm_squared = result.history["saddle_norm_squared"][-1]
        distance = bound = None
        if solution is not None:
            distance = measure.distance(problem, result.w, result.delta, *solution)
            if name in ("ssi-hg", "dsi-hg"):
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
            "environment": {**environment(), "threads": str(torch.get_num_threads()), "dtype": str(problem.w0.dtype)},
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


def _build(name: str, options: dict[str, Any]) -> zoo.Benchmark:
    """A problem of the zoo, or what a user's own callable gives."""
    make = partial(zoo.get, name) if ":" not in name else _own(name)
    try:
        made = make(**options)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{name} cannot be built with {options or 'no options'} ({error}): see --set") from error
    if isinstance(made, Problem):
        return zoo.Benchmark(name, "a problem of your own", made, None)
    if isinstance(made, zoo.Benchmark):
        return made
    raise InputError(f"problem {name!r} gives a {type(made).__name__}: it must give a sihg.Problem or a zoo Benchmark")


def _own(name: str) -> Callable[..., object]:
    """The callable that package.module:callable names, looked for in the current folder too."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"problem {name!r} cannot be loaded ({error}): name package.module:callable") from error
    finally:
        sys.path.pop(0)
    if not callable(made):
        raise InputError(f"problem {name!r} is a {type(made).__name__}: name a callable that gives a sihg.Problem")
    return made  # type: ignore[no-any-return]


def _field(comparison: Comparison) -> dict[str, Any]:
    """The direction (-grad_w, +grad_delta) over the part of the plane that the paths visited."""
    from sihg.minimax import Box

    problem, solution = comparison.benchmark.problem, comparison.benchmark.solution
    box = None
    if isinstance(problem.f, Box) and isinstance(problem.g, Box):
        box = [float(side) for side in (problem.f.lower, problem.f.upper, problem.g.lower, problem.g.upper)]
    size = max(abs(float(problem.w0)), abs(float(problem.delta0)), 0.1) * 1.6
    low_w, high_w, low_d, high_d = box or (-size, size, -size, size)
    ws = torch.linspace(low_w, high_w, 25, dtype=problem.w0.dtype)
    ds = torch.linspace(low_d, high_d, 25, dtype=problem.w0.dtype)
    rows = [[problem.gradients(w[None], d[None]) for w in ws] for d in ds]
    return {
        "w": ws.tolist(),
        "delta": ds.tolist(),
        "dw": [[-float(g_w) for g_w, _ in row] for row in rows],
        "ddelta": [[float(g_d) for _, g_d in row] for row in rows],
        "solution": None if solution is None else [float(solution.w), float(solution.delta)],  # type: ignore[arg-type]
        "box": box,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
