"""Run several methods on one problem and compare where they get to; what `sihg solve` does."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Unpack

import torch

from sihg.errors import InputError, SihgError
from sihg.minimax import measure, zoo
from sihg.minimax._compare_settings import CompareSettings, check_names, command_line, extend_config, make_config
from sihg.minimax._direction_field import direction_field, finite_or_none
from sihg.minimax._label import split_label
from sihg.minimax._load_benchmark import IN_PYTHON, Source, load_benchmark, recipe
from sihg.minimax._solve_folder import Point, SolveFolder, identity
from sihg.minimax._start import AUTO, RULES, check_rule, check_suits, start_solve
from sihg.minimax.history import History
from sihg.minimax.problem import Problem
from sihg.minimax.solve import Result, Run
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers import method_class, method_name
from sihg.parse import parse_names
from sihg.store.files import make_folder
from sihg.store.run_folder import describe_environment, locked
from sihg.store.schema import SolveConfig, SolveRow, SolveSummary

SECONDS_BETWEEN_SAVES = 30.0
Show = Callable[[int, str], object]  # receives how much of `Comparison.total` is done, and a note


def compare(
    problem: Source, methods: str | Sequence[str] = ("ssi-hg",), **settings: Unpack[CompareSettings]
) -> SolveSummary:
    """Run several methods on one problem and summarise where they get to.

    Args:
        problem: A name of the zoo, a callable as "package.module:make" or "path.py:make" that returns a `Problem`, or
            the problem itself.
        methods: Names in `METHODS`, a list or text such as "ssi-hg,gda". "ssi-hg@adaptive" is a method with adaptive
            steps, whatever `steps` says.
        **settings: options: Options of a named problem, such as {"n": 16}.
            iterations: The most iterations of each method (default: 2000, or no limit if `gradients` is given).
            gradients: The most block gradients of each method, in w and delta together: a comparison at equal cost.
                A method ends with the iteration that reaches this count.
            seed: The seed of the drawn blocks (default: 0).
            tolerance: Stop a method once ||F|| is at most this.
            record_every: Record a row every so many iterations (default: about 500 rows, at equal distances in
                iterations, or in block gradients if `gradients` is given).
            steps: "theorem" (default), "adaptive", or sigma, tau and theta for the methods that have them.
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
        check_rule(config.step_rule)
        for name in config.methods:
            check_suits(benchmark.problem, split_label(name)[0])
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
        check_names(settings, CompareSettings)
        folder = settings.get("folder")
        files = SolveFolder(Path(folder)) if folder else None
        if files and not settings.get("overwrite"):
            files.check_free()
        given = settings.get("options", {})
        benchmark = load_benchmark(problem, given)
        name, options = recipe(problem, benchmark, given)
        made = Comparison(make_config(name, options, tuple(parse_names(methods)), settings), benchmark, files)
        try:
            if files and not settings.get("overwrite"):
                files.check_free()  # again, now that it is locked
            if files:
                files.begin(made.config)
        except BaseException:
            made.close()
            raise
        return made

    @staticmethod
    def resumed(
        folder: str | Path, iterations: int | None = None, *, gradients: int | None = None, trust: bool = False
    ) -> "Comparison":
        """Continue the comparison in a folder, to `iterations` or `gradients` in all.

        The limits of the folder hold if neither is given; otherwise only those given do.
        With `trust`, the folder may name a problem in a file although no command of yours made it.
        """
        files = SolveFolder(Path(folder))
        config = files.read_config(trust=trust)
        if config.problem.endswith(IN_PYTHON):
            raise InputError("resume-given-in-python", path=files.path, problem=config.problem)
        config = extend_config(config, iterations, gradients)
        made = Comparison(config, load_benchmark(config.problem, config.options), files)
        try:
            if iterations is not None or gradients is not None:
                files.write_config(config)
        except BaseException:
            made.close()
            raise
        return made

    @property
    def total(self) -> tuple[int, str]:
        """How much each method does at most, and in which unit."""
        if self.config.gradients is not None:
            return self.config.gradients, "block gradients"
        return self.config.iterations, "iterations"

    def close(self) -> None:
        """Free the lock of the folder."""
        self._lock.close()

    def run(self, name: str, show: Show = lambda _done, _note: None) -> SolveRow:
        """Run a method, or the rest of it, and return its row.

        Args:
            name: The method.
            show: Called after every iteration with how much of `total` is done, and a note.
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
        method, rule = split_label(name)
        given = rule or (None if method == AUTO and config.step_rule == RULES[0] else config.step_rule)
        at = start_solve(problem, method, steps, config.seed, state, given if state is None else None)
        if state is None and config.gradients is not None and _spent(at) >= config.gradients:
            raise InputError("auto-budget", gradients=config.gradients, least=_spent(at) + 1)
        if keeps_path and state is None:
            path += _trial_path(problem, at)
        run = Run(
            problem,
            at,
            iterations=max(0, config.iterations - at.iteration),  # the trials of "auto" may have done more
            tolerance=config.tolerance,
            record_every=config.record_every,
            gradients=config.gradients,
            record_gradients=config.record_gradients,
            begins=state is None,
        )
        note, next_save = "", time.monotonic() + SECONDS_BETWEEN_SAVES
        for _ in run.iterate():
            progress = run.progress()
            if keeps_path:
                path.append((progress.iteration, float(progress.state.w), float(progress.state.delta)))
            if progress.row is not None:
                note = f"|F|^2 {progress.row['saddle_norm_squared']:.3g}"
            show(progress.iteration if config.gradients is None else min(run.spent, config.gradients), note)
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
        config, spent = self.config, row.w_gradients + row.delta_gradients
        ended = row.stopped.startswith(("tolerance", "diverged", "stalled")) or row.iterations >= config.iterations
        return row if ended or (config.gradients is not None and spent >= config.gradients) else None

    def _row(self, name: str, result: Result, messages: tuple[str, ...]) -> SolveRow:
        problem, solution, state = self.benchmark.problem, self.benchmark.solution, result.state
        if len(result.history) and result.history["iteration"][-1] == state.iteration:
            norm_squared = result.history["saddle_norm_squared"][-1]
        else:
            norm_squared = measure.saddle_norm_squared(problem, result.w, result.delta)
        distance = bound = None
        if solution is not None:
            distance = measure.distance(problem, result.w, result.delta, *solution)
            method = split_label(name)[0]
            if method in ("ssi-hg", "dsi-hg") and result.steps.theta == 1 and state.adaptive is None:
                sigma, tau = result.steps.sigma, result.steps.tau
                bound = measure.explicit_bound(problem, *solution, sigma, tau, one_block=method == "dsi-hg")
        return SolveRow(
            method=name,
            iterations=state.iteration,
            w_gradients=state.w_gradients,
            delta_gradients=state.delta_gradients,
            seconds=state.seconds,
            saddle_norm_squared=finite_or_none(norm_squared),
            distance=finite_or_none(distance),
            sigma=result.steps.sigma,
            tau=result.steps.tau,
            theta=getattr(state.method, "theta", None),
            source=result.steps.source,
            bound=finite_or_none(bound),
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
            gradients=config.gradients,
            command=command_line(config),
            environment=describe_environment(threads=torch.get_num_threads(), dtype=str(problem.w0.dtype)),
            methods=tuple(self.rows),
        )
        if self.folder:
            self._handle.check()
            self.folder.write_summary(summary, direction_field(self.benchmark) if self.in_plane else None)
        return summary


def _spent(at: SolveState) -> int:
    """Return the block gradients so far; before the first iteration they are those of the trials of "auto"."""
    return at.w_gradients + at.delta_gradients


def _trial_path(problem: Problem, at: SolveState) -> list[Point]:
    """Return the points of the trial with which "auto" begins, by doing its iterations again."""
    if not at.iteration:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = start_solve(problem, method_name(at.method), {}, at.seed, None, at.candidates[0].steps)
    run = Run(problem, start, iterations=at.iteration, tolerance=None, record_every=None)
    return [(run.at.iteration, float(run.at.inner.w), float(run.at.inner.delta)) for _ in run.iterate()]


def _setting_names(method: str) -> set[str]:
    name = split_label(method)[0]
    return set() if name == AUTO else {setting.name for setting in fields(method_class(name))}


def _joined(earlier: History, later: History) -> History:
    joined = History({**earlier.about, **later.about})
    joined.extend(earlier)
    joined.extend(later)
    return joined
