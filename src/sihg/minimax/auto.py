"""Choose a method by trying several at equal numbers of block gradients; each round leaves half of the candidates."""

import warnings
from dataclasses import dataclass, replace
from math import inf, isfinite

import torch

from sihg.errors import EstimateWarning, StepSizeWarning
from sihg.minimax._oracle import DivergedError
from sihg.minimax._stepper import Stepper, draw_blocks
from sihg.minimax.adaptive import StalledError
from sihg.minimax.measure import flat_saddle_norm_squared
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import Candidate, SolveState
from sihg.minimax.solvers import method_name

FIRST_BUDGET = 40  # block gradients per block of delta in the first round; each later round doubles it


@dataclass
class Trial:
    """A candidate on its way."""

    at: SolveState  # the start of the solve, from which the chosen method begins
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
        return Candidate(method_name(self.at.method), self.rule, self.gradients, self.norm_squared)


def choose(problem: Problem, starts: list[tuple[str, SolveState]]) -> SolveState:
    """Return the start of the candidate with the smallest ||F||, with the gradients of all trials on its account.

    Args:
        problem: The problem.
        starts: The candidates: a rule for the step sizes, and the state before the first iteration.
    """
    trials = [Trial(at, rule, at) for rule, at in starts]
    left, budget = trials, FIRST_BUDGET * problem.n
    solved = _solved(problem)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", StepSizeWarning)
        warnings.simplefilter("ignore", EstimateWarning)
        while len(left) > 1:
            for trial in left:
                _run(problem, trial, budget)
            left = sorted(left, key=lambda trial: trial.norm_squared)[: (len(left) + 1) // 2]
            if left[0].norm_squared <= solved or not isfinite(left[0].norm_squared):
                break
            budget *= 2
    best = left[0]
    tried = tuple(trial.candidate for trial in sorted(trials, key=lambda trial: (-trial.rounds, trial.norm_squared)))
    steps = replace(best.at.steps, source=f"auto: {_reason(best, tried)}; {best.at.steps.source}")
    return replace(
        best.at,
        steps=steps,
        candidates=tried,
        w_gradients=sum(trial.reached.w_gradients for trial in trials),
        delta_gradients=sum(trial.reached.delta_gradients for trial in trials),
    )


def _solved(problem: Problem) -> float:
    """Return the ||F||^2 below which further trials tell nothing: rounding, relative to the start."""
    start = flat_saddle_norm_squared(problem, problem.w0, problem.delta0)
    return float(torch.finfo(problem.w0.dtype).eps) * start if isfinite(start) else 0.0


def _run(problem: Problem, trial: Trial, budget: int) -> None:
    """Continue a candidate until it has taken `budget` more block gradients, and measure where it is."""
    at, wanted = trial.reached.copied(), trial.gradients + budget
    stepper, k, s = Stepper(problem, at), at.iteration, at.inner
    oracle, blocks = stepper.oracle, draw_blocks(at.seed, problem.n, at.iteration, at.method.weights(problem, at.inner))
    try:
        # At a solution adaptive steps remember every gradient and take no new ones: iterations are bounded too.
        while oracle.w_gradients + oracle.delta_gradients < wanted and k < at.iteration + budget:
            k += 1
            s = stepper.step(s, next(blocks), k)
        trial.norm_squared = flat_saddle_norm_squared(problem, s.w, s.delta)
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
        f"({other.method} with {other.steps} steps {other.saddle_norm_squared:.3g}; {len(tried)} tried); from the start"
    )
