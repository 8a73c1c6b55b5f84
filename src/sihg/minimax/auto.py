"""Choose a method by trying several at equal numbers of block gradients; each round leaves half of the candidates."""

import warnings
from dataclasses import dataclass, replace
from math import inf, isfinite

import torch

from sihg.errors import EstimateWarning, StepSizeWarning
from sihg.minimax._oracle import DivergedError, StalledError
from sihg.minimax._stepper import Stepper, draw_blocks
from sihg.minimax.measure import flat_saddle_norm_squared
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import Candidate, SolveState
from sihg.minimax.solvers import method_name

FIRST_BUDGET = 40  # block gradients per block of delta in the first round; each later round doubles it
# With "theorem" and "adaptive" steps both allowed: one or both of a method, by what solves most of the zoo.
CANDIDATES = (
    ("ssi-hg", "theorem"),
    ("ssi-hg", "adaptive"),
    ("dsi-hg", "adaptive"),
    ("extragradient", "adaptive"),
    ("optimistic", "adaptive"),
    ("eg+", "theorem"),
    ("inexact-ppm", "theorem"),
    ("curvature-eg+", "adaptive"),
)


@dataclass
class Trial:
    """A candidate on its way."""

    rule: str
    reached: SolveState
    norm_squared: float = inf
    rounds: int = 0

    @property
    def gradients(self) -> int:
        """The block gradients so far."""
        return self.reached.w_gradients + self.reached.delta_gradients

    @property
    def candidate(self) -> Candidate:
        """What the result tells of it."""
        return Candidate(method_name(self.reached.method), self.rule, self.gradients, self.norm_squared)


def choose(problem: Problem, starts: list[tuple[str, SolveState]]) -> tuple[SolveState, str]:
    """Return where the candidate with the smallest ||F|| got to, with the gradients of all trials, and its rule.

    Warns if no candidate is nearer to a stationary point, by ||F||, than the start.

    Args:
        problem: The problem.
        starts: The candidates: a rule for the step sizes, and the state before the first iteration.
    """
    trials = [Trial(rule, at) for rule, at in starts]
    left, budget = trials, FIRST_BUDGET * problem.n
    start = flat_saddle_norm_squared(problem, problem.w0, problem.delta0)
    solved = float(torch.finfo(problem.w0.dtype).eps) * start if isfinite(start) else 0.0  # rounding
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", StepSizeWarning)
        warnings.simplefilter("ignore", EstimateWarning)
        while len(left) > 1:
            for trial in left:
                _run(problem, trial, budget)
            left = sorted(left, key=lambda trial: trial.norm_squared)[: (len(left) + 1) // 2]
            if left[0].norm_squared <= solved or not isfinite(left[0].norm_squared):
                break
            budget = 2 * budget + FIRST_BUDGET * problem.n  # in all: each round doubles that of the one before
    best = left[0]
    if not best.norm_squared < start:
        _warn(start, trials)
    tried = tuple(trial.candidate for trial in sorted(trials, key=lambda trial: (-trial.rounds, trial.norm_squared)))
    steps = replace(best.reached.steps, source=f"auto: {_reason(best, tried)}; {best.reached.steps.source}")
    at = replace(
        best.reached,
        steps=steps,
        candidates=tried,
        w_gradients=sum(trial.reached.w_gradients for trial in trials),
        delta_gradients=sum(trial.reached.delta_gradients for trial in trials),
    )
    return at, best.rule


def _warn(start: float, trials: list[Trial]) -> None:
    """Warn that no trial lowered ||F||."""
    names = ", ".join(dict.fromkeys(method_name(trial.reached.method) for trial in trials))
    warnings.warn(
        f"auto: no candidate brought |F|^2 below {start:.3g}, that of the start: look at the history, or name another "
        f"method than {names}",
        EstimateWarning,
        stacklevel=4,
    )


def _run(problem: Problem, trial: Trial, budget: int) -> None:
    """Continue a candidate until it has taken `budget` block gradients in all, and measure where it is."""
    at = trial.reached.copied()
    stepper, k, s = Stepper(problem, at), at.iteration, at.inner
    oracle, blocks = stepper.oracle, draw_blocks(at.seed, problem.n, at.iteration, at.method.weights(problem, at.inner))
    try:
        # At a solution adaptive steps remember every gradient and take no new ones: iterations are bounded too.
        while oracle.w_gradients + oracle.delta_gradients < budget and k < at.iteration + budget:
            k += 1
            s = stepper.step(s, next(blocks), k)
        norm_squared = flat_saddle_norm_squared(problem, s.w, s.delta)
        trial.norm_squared = norm_squared if isfinite(norm_squared) else inf  # NaN has no place in an order
    except (DivergedError, StalledError):
        trial.norm_squared = inf
    reached = replace(at, iteration=k, inner=s, w_gradients=oracle.w_gradients, delta_gradients=oracle.delta_gradients)
    trial.reached, trial.rounds = stepper.reached(reached), trial.rounds + 1


def _reason(best: Trial, tried: tuple[Candidate, ...]) -> str:
    """Say which method is taken and why."""
    chosen = f"{best.candidate.method} with {best.rule} steps"
    if not isfinite(best.norm_squared):
        return f"{chosen}, the first of {len(tried)}, since all diverged in a trial"
    if len(tried) == 1:
        return f"{chosen}, the only candidate"
    other = next(candidate for candidate in tried if candidate != best.candidate)
    return (
        f"{chosen}, |F|^2 {best.norm_squared:.3g} after {best.gradients} block gradients of a trial "
        f"({other.method} with {other.steps} steps {other.saddle_norm_squared:.3g}; {len(tried)} tried)"
    )
