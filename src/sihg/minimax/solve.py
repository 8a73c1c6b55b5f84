"""Run any method on any problem: the only loop, with history, stopping, callbacks and exact continuation."""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from sihg.errors import EstimateWarning, InputError
from sihg.interrupt import stop_on_interrupt
from sihg.minimax._layout import Blocks, Weights
from sihg.minimax._oracle import DivergedError, StalledError
from sihg.minimax._start import settings_of, start_solve, step_number, step_numbers
from sihg.minimax._stepper import Stepper, draw_blocks
from sihg.minimax.callbacks import Callback, Progress
from sihg.minimax.history import History
from sihg.minimax.measure import flat_saddle_norm_squared
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import Candidate, SolveState
from sihg.minimax.solvers import method_name
from sihg.minimax.step_sizes import StepSizes


@dataclass(frozen=True, repr=False)
class Result:
    """Where a solve got to.

    Args:
        w: The last finite w, in the form of w0.
        delta: The last finite delta, in the form of delta0.
        history: The recorded rows.
        stopped: Why the solve stopped, as a sentence.
        state: The state from which to continue.
        steps: The step sizes and their source.
    Example:
        >>> from sihg.minimax import zoo
        >>> solve(zoo.get("matrix-game").problem, iterations=50)
        Result(ssi-hg, |F|^2 1.23e-32, 50 iterations done)
    """

    w: Weights
    delta: Blocks
    history: History
    stopped: str
    state: SolveState
    steps: StepSizes

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What "auto" tried."""
        return self.state.candidates

    def __repr__(self) -> str:
        norm = f"|F|^2 {self.history['saddle_norm_squared'][-1]:.3g}, " if len(self.history) else ""
        return f"Result({method_name(self.state.method)}, {norm}{self.stopped})"


def solve(
    problem: Problem,
    method: str = "ssi-hg",
    *,
    steps: str | Mapping[str, float] | None = None,
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
    **options: float,
) -> Result:
    r"""Run a method on a problem.

    "ssi-hg" is the paper's Algorithm 1: a hybrid gradient step in w, then an implicit step in one random block i.

    $$w^{k+1} = \operatorname{prox}_f^\sigma[w^k - \sigma \{A_k + \theta (A_k - q^k)\}], \quad
    A_k = \nabla_w \phi(w^k, \delta^k)$$

    $$\delta_i^{k+1} = \operatorname{prox}_{g_i}^\tau[\delta_i^k +
    \tau \nabla_{\delta_i} \phi_i(w^{k+1}, \delta_i^{k+1})]$$

    Ctrl-C and SIGTERM end the solve after the current iteration, with what was reached. Divergence is not an error:
    the result holds the last finite iterate and says so.

    Args:
        problem: The problem.
        method: A name in `METHODS`, or "auto": several are tried for a short while at equal numbers of block gradients,
            and the one with the smallest ||F|| goes on. `result.candidates` has what each reached, and
            `result.steps.source` says which was chosen and why. The gradients of the trials are counted; its
            iterations so far come before those asked for.
        steps: "theorem" (default), "adaptive", or numbers such as {"sigma": 0.1, "tau": 0.05}. "adaptive" takes the
            largest steps that pass a line search on local Lipschitz estimates; no theorem covers them.
        sigma: The step size of w. Default: by the method's theorem from the problem's constants, or from estimates;
            `result.steps.source` says which.
        tau: The step size of delta. Default: likewise.
        theta: The extrapolation in [0, 1]. Default: likewise.
        iterations: The number of iterations.
        tolerance: Stop once ||F|| is at most this, checked whenever a row is recorded.
        seed: The seed of the blocks that a stochastic method draws. Default: 0.
        blocks: The blocks i_k to take instead of drawn ones, one per iteration.
        record_every: Record a row every so many iterations; None to measure nothing.
        callback: Called with a `Progress` after every iteration; stops the solve by returning a true value.
        state: Continue an earlier solve exactly, with its settings and seed unless others are given.
        **options: Further settings of the method, such as ascent_steps of "mgda".
    Returns:
        The last finite iterate, the history, why the solve stopped, and the state to continue from.
    Raises:
        UnknownNameError: If there is no such method.
        StepSizeError: If a step size is out of range, or tau >= 1/L22 for an implicit step.
        InputError: If another setting is invalid, or `state` belongs to another problem or method.
    Example:
        >>> from sihg.minimax import zoo
        >>> result = solve(zoo.get("quadratic").problem, iterations=500, tolerance=1e-3)
        >>> result.stopped
        'tolerance reached at iteration 230: saddle norm 0.000906 <= 0.001'

    Reference: Kim & Seo, "Semi-Implicit Hybrid Gradient Methods with Application to Adversarial Robustness",
    AISTATS 2022, Algorithms 1 and 2.
    """
    numbers = {"sigma": sigma, "tau": tau, "theta": theta}
    given = {**step_numbers(steps), **{name: step_number(name, v) for name, v in numbers.items() if v is not None}}
    _check_blocks(problem, iterations, blocks)
    rule = steps if isinstance(steps, str) else None
    at = start_solve(problem, method, {**given, **options}, seed, state, rule)
    run = Run(
        problem,
        at,
        iterations=iterations,
        tolerance=tolerance,
        record_every=record_every,
        blocks=blocks,
        begins=state is None,
    )
    for _ in run.iterate():
        if callback and callback(run.progress()):
            run.end_early()
            break
    return run.result()


class Run:
    """A solve in progress: loop over `iterate()`, then take the `result()`."""

    def __init__(
        self,
        problem: Problem,
        at: SolveState,
        *,
        iterations: int,
        tolerance: float | None,
        record_every: int | None,
        blocks: Sequence[int] | None = None,
        gradients: int | None = None,
        record_gradients: int | None = None,
        begins: bool = True,
    ) -> None:
        """Prepare a solve; one that `begins` records a row before its first iteration.

        `gradients` is a budget of block gradients: the iteration that reaches it is the last. With `record_gradients`,
        rows are recorded whenever the count passes a multiple of it, instead of every so many iterations.
        """
        _check_settings(iterations, tolerance, record_every)
        self.problem, self.start, self.blocks, self.stopped = problem, at, blocks, ""
        self.gradients, self.record_gradients = gradients, record_gradients
        self.iterations, self.tolerance, self.record_every = iterations, tolerance, record_every
        self.reached = (at.iteration, at.inner, at.w_gradients, at.delta_gradients, at.seconds)
        self.stepper = Stepper(problem, at)
        steps = {**settings_of(at.method), "source": at.steps.source}
        about = {"method": method_name(at.method), "n": problem.n, "seed": at.seed, "steps": steps}
        self.history = History(about)
        self.begins = begins or at.iteration == 0

    @property
    def at(self) -> SolveState:
        """The state after the last finished iteration."""
        k, inner, in_w, in_delta, seconds = self.reached
        at = replace(self.start, iteration=k, inner=inner, w_gradients=in_w, delta_gradients=in_delta, seconds=seconds)
        return self.stepper.reached(at)

    @property
    def spent(self) -> int:
        """The number of block gradients so far, in w and in delta."""
        return self.reached[2] + self.reached[3]

    def progress(self) -> Progress:
        """Return what a callback sees after this iteration."""
        recorded = len(self.history) and self.history["iteration"][-1] == self.reached[0]
        return Progress(self.problem, self.at, self.history, self.history.row(-1) if recorded else None)

    def iterate(self) -> Iterator[None]:
        """Yield after every iteration; at the end `stopped` says why."""
        oracle, (first, s, _, _, seconds) = self.stepper.oracle, self.reached
        end = first + int(self.iterations)
        weights = self.start.method.weights(self.problem, s)
        drawn = draw_blocks(self.start.seed, self.problem.n, first, weights)
        blocks = iter(self.blocks if self.blocks is not None else drawn)
        with torch.no_grad(), stop_on_interrupt() as interrupted:
            if self.begins and self.record_every and self._recorded():
                self.stopped = f"tolerance reached at the start: {self._norm_text()}"
                return
            if self._is_spent():  # by the solve that this one continues
                self.stopped = self._spent_text()
                return
            for k in range(first + 1, end + 1):
                start = time.perf_counter()
                try:
                    s = self.stepper.step(s, int(next(blocks)), k)
                except DivergedError as error:
                    self._record_if_new()
                    kept = "the last finite iterate is kept"
                    self.stopped = f"diverged at iteration {k}: {error} is not finite, {kept}; lower the step sizes"
                    return
                except StalledError as error:
                    self._record_if_new()
                    self.stopped = f"stalled at iteration {k}: {error}"
                    return
                seconds += time.perf_counter() - start
                before = self.spent
                self.reached = (k, s, oracle.w_gradients, oracle.delta_gradients, seconds)
                is_last = k == end or self._is_spent()
                at_tolerance = (is_last or self._row_due(k, before)) and self.record_every and self._recorded()
                yield
                if at_tolerance:
                    self.stopped = f"tolerance reached at iteration {k}: {self._norm_text()}"
                    return
                if self._is_spent():
                    self.stopped = self._spent_text()
                    return
                if interrupted():
                    self._record_if_new()
                    self.stopped = f"interrupted at iteration {k}" + ("" if self.gradients else f" of {end}")
                    return
        self.stopped = f"{self.iterations} iterations done" + (f", {end} in all" if first else "")

    def _is_spent(self) -> bool:
        return self.gradients is not None and self.spent >= self.gradients

    def _row_due(self, k: int, before: int) -> bool:
        """Whether a row is due after iteration k, before which `before` block gradients were done."""
        if self.record_gradients:
            return self.spent // self.record_gradients > before // self.record_gradients
        return bool(self.record_every) and k % (self.record_every or 1) == 0

    def end_early(self) -> None:
        """Note that a callback stopped the solve."""
        with torch.no_grad():
            self._record_if_new()
        self.stopped = f"stopped by the callback at iteration {self.reached[0]}"

    def result(self) -> Result:
        """Return where the solve got to; warn about implicit steps that were not solved."""
        if unsolved := self.stepper.oracle.unsolved:
            warnings.warn(
                f"{len(unsolved)} implicit steps ended before their tolerance (the worst within {max(unsolved):.2g}): "
                "lower tau",
                EstimateWarning,
                stacklevel=3,
            )
        self.history.about["stopped"] = self.stopped
        at, problem = self.at, self.problem
        w, delta = problem.w_form(at.inner.w.clone()), problem.delta_form(at.inner.delta.clone())
        return Result(w, delta, self.history, self.stopped, at, at.steps)

    def norm_squared(self) -> float:
        """Return ||F||^2 at the point that the method is measured at; not counted."""
        point = self.stepper.method.measured_at(self.stepper.oracle, self.reached[1])
        return flat_saddle_norm_squared(self.problem, *point)

    def _recorded(self) -> bool:
        """Record a row; return whether the tolerance is reached."""
        oracle, method, search = self.stepper.oracle, self.stepper.method, self.stepper.search
        iteration, _, w_gradients, delta_gradients, seconds = self.reached
        norm_squared = self.norm_squared()
        row = {
            "iteration": iteration,
            "w_gradients": w_gradients,
            "delta_gradients": delta_gradients,
            "seconds": seconds,
            "saddle_norm_squared": norm_squared,
        }
        if search is not None:
            row |= {"sigma": method.sigma, "tau": method.tau, "rejected": search.rejected}
        if method.implicit:
            row |= {"implicit_steps": oracle.implicit_steps, "implicit_error": oracle.implicit_error}
        self.history.append(row)
        return self.tolerance is not None and norm_squared <= self.tolerance**2

    def _record_if_new(self) -> None:
        if self.record_every and (not len(self.history) or self.history["iteration"][-1] != self.reached[0]):
            self._recorded()

    def _spent_text(self) -> str:
        return f"{self.spent} of {self.gradients} block gradients done"

    def _norm_text(self) -> str:
        return f"saddle norm {self.history['saddle_norm_squared'][-1] ** 0.5:.3g} <= {self.tolerance:.3g}"


def _check_settings(iterations: int, tolerance: float | None, record_every: int | None) -> None:
    if iterations < 0 or iterations != int(iterations):
        raise InputError("iterations-range", iterations=iterations)
    if record_every is not None and record_every < 1:
        raise InputError("record-every-range", record_every=record_every)
    if tolerance is not None and not tolerance >= 0:
        raise InputError("tolerance-range", tolerance=tolerance)
    if tolerance is not None and record_every is None:
        raise InputError("tolerance-unchecked", tolerance=tolerance)


def _check_blocks(problem: Problem, iterations: int, blocks: Sequence[int] | None) -> None:
    if blocks is None:
        return
    if len(blocks) < iterations:
        raise InputError("blocks-count", count=len(blocks), iterations=iterations)
    wrong = next((int(i) for i in blocks if not 0 <= i < problem.n), None)
    if wrong is not None:
        raise InputError("blocks-range", block=wrong, last=problem.n - 1)
