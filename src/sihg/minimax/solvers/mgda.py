"""MGDA: several ascent steps on delta, then one descent step on w (Nouiehed et al. 2019)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._oracle import Oracle
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method, State
from sihg.minimax.step_sizes import StepSizes, operator_steps


@dataclass(frozen=True)
class MGDA(Method[State]):
    """delta <- prox_g^tau[delta + tau grad_delta phi(w^k, delta)], `ascent_steps` times, then w at the new delta.

    w^{k+1} = prox_f^sigma[w^k - sigma grad_w phi(w^k, delta^{k+1})]
    """

    sigma: float
    tau: float
    ascent_steps: int = 10

    def init(self, w: Tensor, delta: Tensor) -> State:
        """Start at the iterate."""
        return State(w, delta)

    def step(self, oracle: Oracle, s: State, i: int) -> State:  # noqa: ARG002
        """Do one iteration."""
        delta = s.delta
        for _ in range(self.ascent_steps):
            delta = oracle.prox_g(delta + self.tau * oracle.gradient_delta(s.w, delta), self.tau)
        return State(oracle.prox_f(s.w - self.sigma * oracle.gradient_w(s.w, delta), self.sigma), delta)

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:  # noqa: ARG003
        """Choose sigma = tau = 1/(2L), with L a Lipschitz constant of F."""
        return operator_steps(constants, 0.5, "the customary step 1/(2L)")
