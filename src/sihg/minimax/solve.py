"""The only loop: any method on any problem, with history, stopping, callbacks and exact continuation."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any

import torch

from sihg.core.draw import generator
from sihg.errors import EstimateWarning, InputError, StepSizeError, StepSizeWarning
from sihg.interrupt import stop_on_interrupt
from sihg.minimax.callbacks import Callback, Progress
from sihg.minimax.constants import Constants
from sihg.minimax.history import History
from sihg.minimax.layout import Blocks, Weights
from sihg.minimax.measure import estimate_constants, estimate_curvature, flat_saddle_norm_squared
from sihg.minimax.oracle import DivergedError, Oracle
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers import method_class, method_name
from sihg.minimax.solvers.base import Method
from sihg.minimax.step_sizes import StepSizes


@dataclass(frozen=True)
class Result:
    """Where a solve got to: the last finite iterate, its history, why it stopped, and how to go on."""

    w: Weights
    delta: Blocks
    history: History
    stopped: str
    state: SolveState
    steps: StepSizes


def solve(
    problem: Problem,
    method: str = "ssi-hg",
    *,
    sigma: float | None = None,
    tau: float | None = None,
    theta: float | None = None,
    iterations: int = 1000,
    tolerance: float | None = None,
    seed: int | None = None,
    blocks: Sequence[int] | None = None,
    record_every: int | None = 10,
    callback: Callback | None = None,
    state: SolveState | None = None,
    **options: Any,
) -> Result:
    """Run a method on a problem for so many iterations.

    - Step sizes that are not given come from the problem's constants by the method's theorem, or from estimates;
      `result.steps.source` says which.
    - `tolerance` stops once the saddle norm ||F|| is at most that, looked at whenever a row is recorded.
    - `seed` decides the blocks i_k that a stochastic method draws (0 if not given); `blocks` fixes them, one for each
      of the iterations.
    - `record_every=None` measures nothing.
    - `callback(progress)` is called after every iteration and stops the solve by returning something true.
    - `state` continues an earlier solve exactly, for `iterations` more, with its step sizes and seed unless others are
      given.
    - `options` are further settings of the method, such as MGDA's `ascent_steps`.

    Ctrl-C ends the solve after the iteration under way, with all that was reached.
    """
    _check_settings(problem, iterations, tolerance, blocks, record_every)
    given = {**_checked_steps(sigma, tau, theta), **options}
    with torch.no_grad():
        at = (
            _begin(problem, method, given, seed or 0)
            if state is None
            else _continue(problem, method, given, seed, state)
        )
        oracle = Oracle(problem, at.curvature, at.w_gradients, at.delta_gradients)
        history = History({"method": method, "n": problem.n, "seed": at.seed, "steps": _about(at)})
        run = _Run(problem, at, oracle, history, record_every, tolerance, callback)
        sequence = (int(i) for i in blocks) if blocks is not None else _draws(at.seed, problem.n, at.iteration)
        with stop_on_interrupt() as interrupted:
            stopped = run.go(int(iterations), sequence, interrupted)
    if oracle.unsolved:
        warnings.warn(
            f"{len(oracle.unsolved)} implicit steps ended short of their tolerance (the worst within "
            f"{max(oracle.unsolved):.2g}): lower tau",
            EstimateWarning,
            stacklevel=2,
        )
    history.about["stopped"] = stopped
    at = run.at
    w, delta = problem.w_form(at.inner.w.clone()), problem.delta_form(at.inner.delta.clone())
    return Result(w, delta, history, stopped, at, at.steps)


class _Run:
    """A solve under way."""

    def __init__(
        self,
        problem: Problem,
        at: SolveState,
        oracle: Oracle,
        history: History,
        record_every: int | None,
        tolerance: float | None,
        callback: Callback | None,
    ) -> None:
        self.problem, self.start, self.oracle, self.history = problem, at, oracle, history
        self.record_every, self.tolerance, self.callback = record_every, tolerance, callback
        self.reached = (at.iteration, at.inner, at.w_gradients, at.delta_gradients, at.seconds)

    @property
    def at(self) -> SolveState:
        """The state after the last iteration that was done."""
        k, inner, in_w, in_delta, seconds = self.reached
        return replace(
            self.start, iteration=k, inner=inner, w_gradients=in_w, delta_gradients=in_delta, seconds=seconds
        )

    def go(self, iterations: int, blocks: Iterator[int], interrupted: Callable[[], bool]) -> str:
        """Iterate; give the sentence that says why it ended."""
        method, oracle = self.start.method, self.oracle
        first, s, _, _, seconds = self.reached
        end = first + iterations
        if first == 0 and self.record_every and self._recorded():
            return f"tolerance reached at the start: {self._norm_text()}"
        for k in range(first + 1, end + 1):
            start = time.perf_counter()
            try:
                s = method.step(oracle, s, next(blocks))
            except DivergedError as error:
                self._record_if_new()
                kept = "the last finite iterate is kept"
                return f"diverged at iteration {k}: {error} is not finite, {kept}; lower the step sizes"
            seconds += time.perf_counter() - start
            self.reached = (k, s, oracle.w_gradients, oracle.delta_gradients, seconds)
            row_due = self.record_every and (k % self.record_every == 0 or k == end)
            at_tolerance = row_due and self._recorded()
            if self.callback:
                row = self._last_row() if row_due else None
                if self.callback(Progress(self.problem, self.at, self.history, row)):
                    self._record_if_new()
                    return f"stopped by the callback at iteration {k}"
            if at_tolerance:
                return f"tolerance reached at iteration {k}: {self._norm_text()}"
            if interrupted():
                self._record_if_new()
                return f"interrupted at iteration {k} of {end}"
        return f"{iterations} iterations done" + (f", {end} in all" if first else "")

    def _recorded(self) -> bool:
        """Record a row; tell whether the tolerance is reached."""
        oracle, method = self.oracle, self.start.method
        iteration, s, w_gradients, delta_gradients, seconds = self.reached
        norm_squared = flat_saddle_norm_squared(self.problem, *method.measured_at(oracle, s))
        row = {
            "iteration": iteration,
            "w_gradients": w_gradients,
            "delta_gradients": delta_gradients,
            "seconds": seconds,
            "saddle_norm_squared": norm_squared,
        }
        if method.implicit:
            row |= {"implicit_steps": oracle.implicit_steps, "implicit_error": oracle.implicit_error}
        self.history.append(row)
        return self.tolerance is not None and norm_squared <= self.tolerance**2

    def _record_if_new(self) -> None:
        if self.record_every and (not len(self.history) or self.history["iteration"][-1] != self.reached[0]):
            self._recorded()

    def _last_row(self) -> dict[str, float]:
        return {name: values[-1] for name, values in self.history.columns.items()}

    def _norm_text(self) -> str:
        return f"saddle norm {self.history['saddle_norm_squared'][-1] ** 0.5:.3g} <= {self.tolerance:.3g}"


def check_suits(problem: Problem, method: str, kind: type[Method[Any]]) -> None:
    """Refuse a problem that the method cannot solve."""
    if kind.bilinear_only and not problem.bilinear_in_both:
        raise InputError(f"{method} solves bilinear problems only: use ssi-hg, its generalisation, or Problem.bilinear")


def _begin(problem: Problem, method: str, given: dict[str, Any], seed: int) -> SolveState:
    """The state before the first iteration, with step sizes chosen or checked."""
    kind = method_class(method)
    check_suits(problem, method, kind)
    steps = _steps(problem, kind, given)
    made = _make(kind, method, {**given, "sigma": steps.sigma, "tau": steps.tau, "theta": steps.theta})
    curvature = _curvature(problem, made, steps.tau)
    _warn_outside_theorem(problem, made, steps)
    return SolveState(0, made, steps, made.init(problem.w0.clone(), problem.delta0.clone()), seed, curvature, 0, 0, 0.0)


def _continue(problem: Problem, method: str, given: dict[str, Any], seed: int | None, state: SolveState) -> SolveState:
    """The state to go on from; step sizes given anew replace the old ones."""
    state.check_fits(problem)
    if method_name(state.method) != method:
        raise InputError(f"state is of {method_name(state.method)}, not {method}: continue with the same method")
    state = state.copied()
    if seed is not None:
        state = replace(state, seed=seed)
    changed = {name: value for name, value in given.items() if value != getattr(state.method, name, None)}
    if changed:
        made = _make(type(state.method), method, {**_settings(state.method), **changed})
        steps = replace(
            state.steps, **{k: v for k, v in changed.items() if k in ("sigma", "tau", "theta")}, source="given"
        )
        state = replace(state, method=made, steps=steps, curvature=_curvature(problem, made, steps.tau))
        _warn_outside_theorem(problem, made, steps)
    return state


def _steps(problem: Problem, kind: type[Method[Any]], given: dict[str, Any]) -> StepSizes:
    """The step sizes: given, or chosen by the method's rule; a given one overrides the choice."""
    named = {name: given[name] for name in ("sigma", "tau", "theta") if name in given}
    if "sigma" in given and "tau" in given:
        chosen = StepSizes(given["sigma"], given["tau"])
    else:
        chosen = kind.choose(problem, _lipschitz(problem))
        chosen = replace(chosen, source=", ".join([chosen.source, *(f"{name} given" for name in named)]))
    chosen = replace(chosen, **named)
    return chosen if "theta" in named else replace(chosen, theta=kind.best_theta(problem, chosen.sigma, chosen.tau))


def _checked_steps(sigma: float | None, tau: float | None, theta: float | None) -> dict[str, Any]:
    """The step sizes that are given, as plain numbers in their ranges."""
    given = {name: float(v) for name, v in (("sigma", sigma), ("tau", tau), ("theta", theta)) if v is not None}
    for name in ("sigma", "tau"):
        if name in given and not (isfinite(given[name]) and given[name] > 0):
            raise StepSizeError(f"{name} must be finite and > 0, got {given[name]}: leave it out to have it chosen")
    if not 0 <= given.get("theta", 1.0) <= 1:
        raise StepSizeError(f"theta must be in [0, 1], got {given['theta']}: the theorems use 1, or Theorem 2's value")
    return given


def _lipschitz(problem: Problem) -> Constants:
    """The problem's constants; what is missing of L11, L12, L22 is estimated, with room for what was not seen."""
    known = problem.constants
    if known.lipschitz_known:
        return known
    seen = estimate_constants(problem)
    room = 1.05 if problem.bilinear_in_both else 2.0
    filled = {
        name: getattr(known, name) if getattr(known, name) is not None else room * (getattr(seen, name) or 0.0)
        for name in ("L11", "L12", "L22")
    }
    block = known.L12_block if known.L12_block is not None else min(room * (seen.L12_block or 0.0), filled["L12"])
    return replace(known, **filled, L12_block=block, source=f"{seen.source}, times {room:g}")


def _curvature(problem: Problem, method: Method[Any], tau: float) -> float:
    """L22 for the implicit step, known or estimated; refuses tau L22 >= 1, where the step is not well posed."""
    if not method.implicit or problem.bilinear_in_both:
        return 0.0
    known = problem.constants.L22
    if known is None and problem.closed_form is not None:
        return 0.0
    L22 = estimate_curvature(problem) if known is None else known
    if tau * L22 >= 1:
        kind = "estimated at the start" if known is None else "the problem's"
        raise StepSizeError(f"tau must be < 1/L22 = {1 / L22:.4g} (L22 = {L22:.4g}, {kind}), got {tau:.4g}: lower tau")
    # An estimate of zero is no proof that phi is linear in delta, which alone makes one Picard step exact.
    return L22 if known is not None else max(L22, 1e-3 / tau)


def _warn_outside_theorem(problem: Problem, method: Method[Any], steps: StepSizes) -> None:
    c = problem.constants
    if c.L11 is None or c.L12 is None:
        return
    condition = method.condition(problem, c, steps)
    if condition is not None and not condition:
        warnings.warn(f"outside the theorem: {condition.text}; going on", StepSizeWarning, stacklevel=4)


def _make(kind: type[Method[Any]], name: str, settings: dict[str, Any]) -> Method[Any]:
    """The method with these settings; theta is dropped where the method has none and nobody asked for it."""
    known = {field.name for field in fields(kind)}
    if "theta" not in known and settings.get("theta") in (None, 1.0):
        settings = {k: v for k, v in settings.items() if k != "theta"}
    unknown = set(settings) - known
    if unknown:
        raise InputError(f"{name} has no setting {min(unknown)!r}: it has {', '.join(sorted(known))}")
    return kind(**settings)


def _settings(method: Method[Any]) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in fields(method)}


def _about(at: SolveState) -> dict[str, Any]:
    return {**_settings(at.method), "source": at.steps.source}


def _draws(seed: int, n: int, first: int) -> Iterator[int]:
    """i_k, uniform on the blocks, a function of seed and k."""
    length = 4096
    chunk, skip = divmod(first, length)
    while True:
        drawn = torch.randint(n, (length,), generator=generator(seed, "block", epoch=chunk)).tolist()
        yield from drawn[skip:]
        chunk, skip = chunk + 1, 0


def _check_settings(
    problem: Problem, iterations: int, tolerance: float | None, blocks: Sequence[int] | None, record_every: int | None
) -> None:
    if iterations < 0 or iterations != int(iterations):
        raise InputError(f"iterations must be a whole number >= 0, got {iterations}")
    if record_every is not None and record_every < 1:
        raise InputError(f"record_every must be >= 1, or None to measure nothing, got {record_every}")
    if tolerance is not None and not tolerance >= 0:
        raise InputError(f"tolerance must be >= 0, got {tolerance}")
    if tolerance is not None and record_every is None:
        raise InputError(f"tolerance {tolerance} is looked at when rows are recorded, and none are: set record_every")
    if blocks is not None:
        if len(blocks) < iterations:
            raise InputError(f"blocks has {len(blocks)} entries for {iterations} iterations: give one an iteration")
        wrong = next((i for i in blocks if not 0 <= i < problem.n), None)
        if wrong is not None:
            raise InputError(f"blocks names block {wrong}; the problem has 0 to {problem.n - 1}")
