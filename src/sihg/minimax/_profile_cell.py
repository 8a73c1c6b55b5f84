"""Run one method on one problem until the saddle norm has fallen enough, or the budget of block gradients is spent."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf

from sihg.errors import InputError, SihgError
from sihg.minimax import measure, zoo
from sihg.minimax._direction_field import finite_or_none
from sihg.minimax._label import split_label
from sihg.minimax._start import check_suits, start_solve
from sihg.minimax.problem import Problem
from sihg.minimax.solve import Run
from sihg.minimax.solve_state import SolveState
from sihg.minimax.starts import random_start
from sihg.store.profile_records import Outcome, ProfileCell, ProfileRun, ProfileSettings

CHECK_RATIO = 1.02  # checks of the norm are this factor of gradients apart, so costs are exact within 2 %
MAX_WARNINGS = 3  # kept of a cell, whose starts may each have one of their own
Show = Callable[[str], object]  # receives a note


@dataclass(frozen=True)
class Task:
    """A problem from one of its starts."""

    number: int
    problem: Problem
    target: float
    start_norm: float


def run_cell(
    name: str, benchmark: zoo.Benchmark, method: str, settings: ProfileSettings, identity: str, show: Show
) -> ProfileCell:
    """Run a method from every start of a problem. Ctrl-C raises KeyboardInterrupt."""
    budget = settings.passes * 2 * benchmark.problem.n
    runs: list[ProfileRun] = []
    source = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for task in tasks_of(name, benchmark.problem, settings):
            show(f"start {task.number + 1} of {settings.starts}" if settings.starts else "")
            run, chosen = _run_task(name, benchmark, method, task, budget, settings.seed)
            runs.append(run)
            source = source or chosen
    return ProfileCell(
        problem=name,
        method=method,
        budget=budget,
        settings=identity,
        source=source,
        runs=tuple(runs),
        warnings=tuple(dict.fromkeys(str(warning.message) for warning in caught))[:MAX_WARNINGS],
    )


def tasks_of(name: str, problem: Problem, settings: ProfileSettings) -> Iterator[Task]:
    """Yield the problem from its own start, or from random ones."""
    for number in range(max(1, settings.starts)):
        started = random_start(problem, settings.seed + number) if settings.starts else problem
        norm = measure.flat_saddle_norm_squared(started, started.w0, started.delta0) ** 0.5
        if not norm < inf:
            raise InputError("profile-start", problem=name)
        yield Task(number, started, max(settings.tolerance, settings.reduction * norm), norm)


def _run_task(
    name: str, benchmark: zoo.Benchmark, label: str, task: Task, budget: int, seed: int
) -> tuple[ProfileRun, str]:
    """Return the run, and where its step sizes come from."""
    try:
        run, cost, norm = _solve(task, label, budget, seed + task.number)
    except SihgError as error:  # the method cannot solve such a problem, or has no step sizes for it
        return _not_run(task, str(error)), ""
    except Exception as error:
        if ":" not in name:
            raise
        raise InputError("user-problem-fails", problem=name, name=label, error=error) from error
    outcome: Outcome = "solved" if cost is not None else "budget spent"
    if cost is None and run.spent < budget:
        outcome = "gave up"
    return ProfileRun(
        start=task.number,
        outcome=outcome,
        cost=cost,
        spent=run.spent,
        iterations=run.at.iteration,
        start_norm=task.start_norm,
        end_norm=finite_or_none(norm),
        distance=_distance(benchmark, run.at),
        reason=run.stopped,
    ), run.start.steps.source


def _solve(task: Task, label: str, budget: int, seed: int) -> tuple[Run, int | None, float]:
    """Return the run, the number of block gradients after which it was found to be solved, and its last norm."""
    method, rule = split_label(label)
    check_suits(task.problem, method)
    at = start_solve(task.problem, method, {}, seed, None, rule)
    run = Run(task.problem, at, iterations=budget, tolerance=None, record_every=None, gradients=budget)
    if task.start_norm <= task.target:
        return run, 0, task.start_norm
    norm, next_check = task.start_norm, 0
    for _ in run.iterate():
        if run.spent >= next_check or run.spent >= budget:
            norm, next_check = run.norm_squared() ** 0.5, ceil(run.spent * CHECK_RATIO)
            if norm <= task.target and run.spent <= budget:
                return run, run.spent, norm
    if run.stopped.startswith("interrupted"):
        raise KeyboardInterrupt
    norm = run.norm_squared() ** 0.5  # it may have ended between two checks
    return run, run.spent if norm <= task.target and run.spent <= budget else None, norm


def _not_run(task: Task, reason: str) -> ProfileRun:
    return ProfileRun(
        start=task.number,
        outcome="cannot solve it",
        cost=None,
        spent=0,
        iterations=0,
        start_norm=task.start_norm,
        end_norm=None,
        reason=reason,
    )


def _distance(benchmark: zoo.Benchmark, at: SolveState) -> float | None:
    if benchmark.solution is None:
        return None
    problem, point = benchmark.problem, at.inner
    w, delta = problem.w_form(point.w), problem.delta_form(point.delta)
    return finite_or_none(measure.distance(problem, w, delta, *benchmark.solution))
