"""The base of SSI-HG, DSI-HG and SPDHG: their settings, and step sizes by Theorems 1 and 2."""

from dataclasses import dataclass
from math import sqrt

from sihg.minimax._memory import RememberingOracle
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method, S, State, norm, quotient
from sihg.minimax.step_sizes import Condition, StepSizes, contraction, hybrid_condition, hybrid_steps


@dataclass(frozen=True)
class HybridMethod(Method[S]):
    """A method covered by the theorems, with blocks drawn one at a time."""

    bound = 0.99

    theta: float = 1.0

    @staticmethod
    def blocks(problem: Problem) -> int:
        """Return the n of the theorems."""
        return problem.n

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:
        """Choose by Theorem 2 if mu is known, else by Theorem 1."""
        return hybrid_steps(constants, cls.blocks(problem), is_bilinear=problem.bilinear_in_both)

    @classmethod
    def best_theta(cls, problem: Problem, sigma: float, tau: float) -> float:
        """Return the theta of Theorem 2 if mu is known, else 1."""
        return contraction(sigma, tau, mu=problem.constants.mu or 0.0, n=cls.blocks(problem))

    def condition(self, problem: Problem, constants: Constants, steps: StepSizes) -> Condition:
        """Check Theorem 1 or 2, or SPDHG's condition for bilinear problems."""
        return hybrid_condition(steps, constants, self.blocks(problem), is_bilinear=problem.bilinear_in_both)

    def mixed_ratio(self, oracle: RememberingOracle, s: State, new: State, extrapolation: float) -> float:
        """Return the ratio for an extrapolation e of the next iteration that w and n blocks, one at a time, caused.

            sqrt(sigma) |e| / sqrt(2/9 |dw|^2 / sigma + 2/3 n |ddelta|^2 / tau),  or, if phi is linear in w,
            sqrt(sigma) |e| / sqrt(n |ddelta|^2 / tau)

        Below 1, <e, w^{k+2} - w^{k+1}> is less than what the three steps leave of half their squared lengths.
        """
        moved = sqrt(self.blocks(oracle.problem)) * oracle.moved(s.delta, new.delta)
        if oracle.problem.linear_in_w:
            moved = self.length(0.0, moved)
        else:
            moved = self.length(sqrt(2 / 9) * norm(new.w - s.w), sqrt(2 / 3) * moved)
        return quotient(sqrt(self.sigma) * extrapolation, moved)
