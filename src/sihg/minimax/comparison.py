"""Run several methods on one problem and compare where they get to; what `sihg solve` does."""

import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec
import torch

from sihg.core.prox import Box
from sihg.errors import InputError, SihgError
from sihg.minimax import measure, zoo
from sihg.minimax._layout import flat
from sihg.minimax._solve_folder import Point, SolveFolder, identity
from sihg.minimax._start import check_suits, start_solve
from sihg.minimax.history import History
from sihg.minimax.problem import Problem
from sihg.minimax.solve import Result, Run
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers import method_class
from sihg.parse import Value, expand_home, parse_names
from sihg.store.files import make_folder
from sihg.store.run_folder import describe_environment, locked
from sihg.store.schema import SolveConfig, SolveField, SolveRow, SolveSummary
from sihg.user_code import load_callable

SECONDS_BETWEEN_SAVES = 30.0
FIELD_POINTS = 25  # per axis
Show = Callable[[int, str], object]  # receives the number of iterations done, and a note
Source = str | Problem | zoo.Benchmark


class CompareSettings(TypedDict, total=False):
    """The settings of `compare`, which describes them."""

    options: Mapping[str, Value]
    iterations: int
    seed: int
    tolerance: float | None
    record_every: int | None
    steps: Mapping[str, float]
    folder: str | Path | None
    overwrite: bool


def compare(
    problem: Source, methods: str | Sequence[str] = ("ssi-hg",), **settings: Unpack[CompareSettings]
) -> SolveSummary:
    """Run several methods on one problem and summarise where they get to.

    Args:
        problem: A name of the zoo, a callable as "package.module:make" or "path.py:make" that returns a `Problem`, or
            the problem itself.
        methods: Names in `METHODS`, a list or text such as "ssi-hg,gda".
        **settings: options: Options of a named problem, such as {"n": 16}.
            iterations: The number of iterations of each method (default: 2000).
            seed: The seed of the drawn blocks (default: 0).
            tolerance: Stop a method once ||F|| is at most this.
            record_every: Record a row every so many iterations (default: about 500 rows).
            steps: sigma, tau and theta, for the methods that have them (default: by the methods' theorems).
            folder: Where to save settings, histories and states. `sihg solve --resume FOLDER` continues a named
                problem, and `sihg report FOLDER` draws the comparison.
            overwrite: Replace an earlier comparison in `folder`.
    Returns:
        A summary with a row per method.
    Raises:
        InputError: If a name or a setting is invalid, or `folder` is not free.
    Example:
        >>> summary = compare("matrix-game", ["ssi-hg", "gda"], iterations=50)
        >>> [(row.method, row.w_gradients, row.saddle_norm_squared < 1e-9) for row in summary.methods]
        [('ssi-hg', 50, True), ('gda', 50, False)]
    """
    with closing(Comparison.new(problem, methods, **settings)) as comparison:
        for name in comparison.config.methods:
            if comparison.run(name).stopped.startswith("interrupted"):
                break
        return comparison.summarise()


class Comparison:
    """A comparison in progress: its settings, its problem, its folder, and the rows of the methods that ended.

    It holds the lock of its folder until `close`.
    """

    def __init__(self, config: SolveConfig, benchmark: zoo.Benchmark, folder: SolveFolder | None) -> None:
        if config.record_every < 1:
            raise InputError("compare-record-every", record_every=config.record_every)
        if not config.methods:
            raise InputError("no-method")
        for name in config.methods:
            check_suits(benchmark.problem, name)
        for key in config.steps:
            if not any(key in _setting_names(name) for name in config.methods):
                raise InputError("unused-step-size", name=key, names=", ".join(config.methods))
        self.config, self.benchmark, self.folder = config, benchmark, folder
        self._lock = ExitStack()
        if folder:
            make_folder(folder.path)
            self._handle = self._lock.enter_context(locked(folder.path))
        self.rows: list[SolveRow] = []
        self.in_plane = benchmark.problem.w0.numel() == benchmark.problem.delta0.numel() == 1

    @staticmethod
    def new(problem: Source, methods: str | Sequence[str], **settings: Unpack[CompareSettings]) -> "Comparison":
        """Prepare a comparison; its folder must be free."""
        folder, iterations = settings.get("folder"), settings.get("iterations", 2000)
        files = SolveFolder(Path(folder)) if folder else None
        if files and not settings.get("overwrite"):
            files.check_free()
        every, options = settings.get("record_every"), dict(settings.get("options", {}))
        benchmark = load_benchmark(problem, options)
        config = SolveConfig(
            problem=_absolute(problem) if isinstance(problem, str) else benchmark.name,
            options=options,
            methods=tuple(parse_names(methods)),
            iterations=iterations,
            seed=settings.get("seed", 0),
            tolerance=settings.get("tolerance"),
            record_every=max(1, min(iterations // 500, 100)) if every is None else every,
            steps=dict(settings.get("steps", {})),
        )
        made = Comparison(config, benchmark, files)
        try:
            if files and not settings.get("overwrite"):
                files.check_free()  # again, now that it is locked
            if files:
                files.begin(config)
        except BaseException:
            made.close()
            raise
        return made

    @staticmethod
    def resumed(folder: str | Path, iterations: int | None = None, *, trust: bool = False) -> "Comparison":
        """Continue the comparison in a folder, to `iterations` in all.

        With `trust`, the folder may name a problem in a file although no command of yours made it.
        """
        files = SolveFolder(Path(folder))
        config = files.read_config(trust=trust)
        if iterations is not None:
            config = msgspec.structs.replace(config, iterations=iterations)
        made = Comparison(config, load_benchmark(config.problem, config.options), files)
        try:
            if iterations is not None:
                files.write_config(config)
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """Free the lock of the folder."""
        self._lock.close()

    def run(self, name: str, show: Show = lambda _done, _note: None) -> SolveRow:
        """Run a method, or the rest of it, and return its row.

        Args:
            name: The method.
            show: Called after every iteration with the number of iterations done, and a note.
        """
        row = self._finished(name) or self._run(name, show)
        self.rows.append(row)
        return row

    def _run(self, name: str, show: Show) -> SolveRow:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = self._solve(name, show)
            except Exception as error:
                if isinstance(error, SihgError) or ":" not in self.config.problem:
                    raise
                raise InputError("user-problem-fails", problem=self.config.problem, name=name, error=error) from error
        row = self._row(name, result, tuple(dict.fromkeys(str(warning.message) for warning in caught)))
        if self.folder:
            self._handle.check()
            self.folder.write_row(row)
        return row

    def _solve(self, name: str, show: Show) -> Result:
        """Solve from the saved state, if there is one; save at times and at the end."""
        config, problem, folder = self.config, self.benchmark.problem, self.folder
        keeps_path = folder is not None and self.in_plane
        state, earlier, path = folder.load(name, config, in_plane=self.in_plane) if folder else (None, History(), [])
        if keeps_path and not path:
            path = [(0.0, float(problem.w0), float(problem.delta0))]
        steps = {key: float(value) for key, value in config.steps.items() if key in _setting_names(name)}
        at = start_solve(problem, name, steps, config.seed, state)
        left = config.iterations - at.iteration
        run = Run(problem, at, iterations=left, tolerance=config.tolerance, record_every=config.record_every)
        note, next_save = "", time.monotonic() + SECONDS_BETWEEN_SAVES
        for _ in run.iterate():
            progress = run.progress()
            if keeps_path:
                path.append((progress.iteration, float(progress.state.w), float(progress.state.delta)))
            if progress.row is not None:
                note = f"|F|^2 {progress.row['saddle_norm_squared']:.3g}"
            show(progress.iteration, note)
            if folder and time.monotonic() >= next_save:
                self._save(name, progress.resume(), _joined(earlier, run.history), path)
                next_save = time.monotonic() + SECONDS_BETWEEN_SAVES
        result = run.result()
        result = replace(result, history=_joined(earlier, result.history))
        if folder:
            self._save(name, result.state, result.history, path)
        return result

    def _save(self, name: str, state: SolveState, history: History, path: list[Point]) -> None:
        assert self.folder is not None
        self._handle.check()
        self.folder.save(name, replace(state, config=identity(self.config)), history, path)

    def _finished(self, name: str) -> SolveRow | None:
        """Return the row of a method that has nothing left to do, from an earlier run."""
        row = self.folder.read_row(name, self.config) if self.folder else None
        if row is None:
            return None
        ended = row.stopped.startswith(("tolerance", "diverged")) or row.iterations >= self.config.iterations
        return row if ended else None

    def _row(self, name: str, result: Result, messages: tuple[str, ...]) -> SolveRow:
        problem, solution, state = self.benchmark.problem, self.benchmark.solution, result.state
        if len(result.history) and result.history["iteration"][-1] == state.iteration:
            norm_squared = result.history["saddle_norm_squared"][-1]
        else:
            norm_squared = measure.saddle_norm_squared(problem, result.w, result.delta)
        distance = bound = None
        if solution is not None:
            distance = measure.distance(problem, result.w, result.delta, *solution)
            if name in ("ssi-hg", "dsi-hg") and result.steps.theta == 1:
                sigma, tau = result.steps.sigma, result.steps.tau
                bound = measure.explicit_bound(problem, *solution, sigma, tau, one_block=name == "dsi-hg")
        return SolveRow(
            method=name,
            iterations=state.iteration,
            w_gradients=state.w_gradients,
            delta_gradients=state.delta_gradients,
            seconds=state.seconds,
            saddle_norm_squared=_finite(norm_squared),
            distance=_finite(distance),
            sigma=result.steps.sigma,
            tau=result.steps.tau,
            theta=getattr(state.method, "theta", None),
            source=result.steps.source,
            bound=_finite(bound),
            stopped=result.stopped,
            warnings=messages,
            config=identity(self.config),
        )

    def summarise(self) -> SolveSummary:
        """Return the summary of the methods that ended; with a folder, also write it there."""
        config, problem = self.config, self.benchmark.problem
        summary = SolveSummary(
            problem=config.problem,
            about=self.benchmark.about,
            options=config.options,
            n=problem.n,
            dimension_w=problem.w0.numel(),
            dimension_delta=problem.delta0.numel(),
            seed=config.seed,
            iterations=config.iterations,
            command=_command(config),
            environment=describe_environment(threads=torch.get_num_threads(), dtype=str(problem.w0.dtype)),
            methods=tuple(self.rows),
        )
        if self.folder:
            self._handle.check()
            self.folder.write_summary(summary, _field(self.benchmark) if self.in_plane else None)
        return summary


def _absolute(problem: str) -> str:
    """Make the path in PATH.py:NAME absolute: a resume in another folder must not run another file of that name."""
    file, _, name = problem.rpartition(":")
    return f"{expand_home(file).resolve()}:{name}" if file.endswith(".py") else problem


def load_benchmark(problem: Source, options: Mapping[str, Value]) -> zoo.Benchmark:
    """Return a problem of the zoo, or the one that a user's callable builds, or the given one."""
    if isinstance(problem, zoo.Benchmark):
        return problem
    if isinstance(problem, Problem):
        return zoo.Benchmark("your problem", "a problem given in Python", problem, None)
    make = load_callable("problem", problem) if ":" in problem else partial(zoo.get, problem)
    try:
        made = make(**options)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "problem-not-built", problem=problem, options=dict(options) or "no options", error=error
        ) from error
    if isinstance(made, Problem):
        return zoo.Benchmark(problem, "a problem of your own", made, None)
    if isinstance(made, zoo.Benchmark):
        return made
    raise InputError("problem-type", problem=problem, type=type(made).__name__)


def _setting_names(method: str) -> set[str]:
    return {setting.name for setting in fields(method_class(method))}


def _joined(earlier: History, later: History) -> History:
    joined = History({**earlier.about, **later.about})
    joined.extend(earlier)
    joined.extend(later)
    return joined


def _command(config: SolveConfig) -> str:
    """Return the command line that repeats the comparison."""
    words = ["sihg", "solve", config.problem, "--method", ",".join(config.methods)]
    words += ["--iterations", str(config.iterations), "--seed", str(config.seed)]
    words += ["--record-every", str(config.record_every)]
    words += [word for key, value in config.options.items() for word in ("--set", f"{key}={value}")]
    words += [word for key, value in config.steps.items() for word in (f"--{key}", repr(value))]
    words += ["--tolerance", repr(config.tolerance)] if config.tolerance is not None else []
    return shlex.join(words)


def _field(benchmark: zoo.Benchmark) -> SolveField:
    """Return the direction (-grad_w, +grad_delta) over the box, or around the start and the solution."""
    problem, solution = benchmark.problem, benchmark.solution
    answer = None if solution is None else (float(flat(solution.w)), float(flat(solution.delta)))
    size = 1.6 * max(map(abs, (0.1, float(problem.w0), float(problem.delta0), *(answer or ()))))
    box = (*_sides(problem.f), *_sides(problem.g))
    low_w, high_w, low_d, high_d = (
        side if isfinite(side) else edge for side, edge in zip(box, (-size, size) * 2, strict=True)
    )
    ws = torch.linspace(low_w, high_w, FIELD_POINTS, dtype=problem.w0.dtype)
    ds = torch.linspace(low_d, high_d, FIELD_POINTS, dtype=problem.w0.dtype)
    rows = [[problem.gradients(w[None], d[None]) for w in ws] for d in ds]
    return SolveField(
        w=tuple(ws.tolist()),
        delta=tuple(ds.tolist()),
        dw=tuple(tuple(_finite(-float(g_w)) for g_w, _ in row) for row in rows),
        ddelta=tuple(tuple(_finite(float(g_d)) for _, g_d in row) for row in rows),
        solution=answer,
        box=box if all(map(isfinite, box)) else None,
    )


def _sides(function: object) -> tuple[float, float]:
    return (float(function.lower), float(function.upper)) if isinstance(function, Box) else (-inf, inf)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
