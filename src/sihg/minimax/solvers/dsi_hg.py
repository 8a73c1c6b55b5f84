"""DSI-HG: deterministic semi-implicit hybrid gradient (Algorithm 2)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.core.hybrid import hybrid
from sihg.minimax.constants import Constants
from sihg.minimax.oracle import Oracle
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.method import Method, State
from sihg.minimax.steps import Condition, StepSizes, contraction, hybrid_condition, hybrid_steps


@dataclass(frozen=True)
class DSIHGState(State):
    """The iterate and the last gradient."""

    gradient: Tensor | None = None  # grad_w phi(w^{k-1}, delta^{k-1})


@dataclass(frozen=True)
class DSIHG(Method[DSIHGState]):
    """A hybrid gradient step on w, then an implicit step on all of delta.

        w^{k+1} = prox_f^sigma[w^k - sigma {(1+theta) A_k - theta A_{k-1}}],  A_k = grad_w phi(w^k, delta^k)
        delta^{k+1} = prox_g^tau[delta^k + tau grad_delta phi(w^{k+1}, delta^{k+1})]

    The blocks of delta, however many, are one block here.
    """

    sigma: float
    tau: float
    theta: float = 1.0

    implicit = True

    def init(self, w: Tensor, delta: Tensor) -> DSIHGState:
        """(w^{-1}, delta^{-1}) = (w^0, delta^0)."""
        return DSIHGState(w, delta)

    def step(self, oracle: Oracle, s: DSIHGState, i: int) -> DSIHGState:  # noqa: ARG002
        """One iteration."""
        A = oracle.gradient_w(s.w, s.delta)
        direction = A if s.gradient is None else hybrid(A, s.gradient, self.theta)
        w = oracle.prox_f(s.w.sub(direction, alpha=self.sigma), self.sigma)
        return DSIHGState(w, oracle.implicit(w, s.delta, self.tau, oracle.problem.all), gradient=A)

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:
        """By Theorem 2 where mu is known, else by Theorem 1 (Corollaries 4 and 3)."""
        return hybrid_steps(constants, 1, is_bilinear=problem.bilinear_in_both)

    @classmethod
    def best_theta(cls, problem: Problem, sigma: float, tau: float) -> float:
        """Theorem 2's where mu is known, else 1."""
        return contraction(sigma, tau, mu=problem.constants.mu or 0.0, n=1)

    def condition(self, problem: Problem, constants: Constants, steps: StepSizes) -> Condition:
        """Theorem 1 or 2."""
        return hybrid_condition(steps, constants, 1, is_bilinear=problem.bilinear_in_both)
