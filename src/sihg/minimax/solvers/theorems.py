"""The base of SSI-HG, DSI-HG and SPDHG: their settings, and step sizes by Theorems 1 and 2."""

from dataclasses import dataclass

from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method, S
from sihg.minimax.step_sizes import Condition, StepSizes, contraction, hybrid_condition, hybrid_steps


@dataclass(frozen=True)
class HybridMethod(Method[S]):
    """A method covered by the theorems, with blocks drawn one at a time."""

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
