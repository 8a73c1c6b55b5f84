"""DSI-HG: deterministic semi-implicit hybrid gradient (Algorithm 2)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.core.hybrid import hybrid
from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import State, change
from sihg.minimax.solvers.theorems import HybridMethod


@dataclass(frozen=True)
class DSIHGState(State):
    """The iterate and the previous gradient."""

    gradient: Tensor | None = None  # grad_w phi(w^{k-1}, delta^{k-1})
    sigma: float | None = None  # the step that led here


@dataclass(frozen=True)
class DSIHG(HybridMethod[DSIHGState]):
    """A hybrid gradient step in w, then an implicit step in all of delta.

        w^{k+1} = prox_f^sigma[w^k - sigma {(1+theta) A_k - theta A_{k-1}}],  A_k = grad_w phi(w^k, delta^k)
        delta^{k+1} = prox_g^tau[delta^k + tau grad_delta phi(w^{k+1}, delta^{k+1})]

    All blocks of delta are treated as one.
    """

    state = DSIHGState  # its first step takes (w^{-1}, delta^{-1}) = (w^0, delta^0)
    implicit = True

    def step(self, oracle: Oracle, s: DSIHGState, i: int) -> DSIHGState:  # noqa: ARG002
        """Do one iteration."""
        A = oracle.gradient_w(s.w, s.delta)
        theta = self.theta if s.sigma is None else self.theta * (s.sigma / self.sigma)
        direction = A if s.gradient is None else hybrid(A, s.gradient, theta)
        w = oracle.prox_f(s.w.sub(direction, alpha=self.sigma), self.sigma)
        return DSIHGState(w, oracle.implicit(w, s.delta, self.tau, oracle.problem.all), gradient=A, sigma=self.sigma)

    def local_ratio(self, oracle: RememberingOracle, s: DSIHGState, new: DSIHGState, i: int) -> float:  # noqa: ARG002
        """Return the ratio for the extrapolation A_{k+1} - A_k of the next iteration."""
        assert new.gradient is not None
        return self.mixed_ratio(oracle, s, new, change(oracle.gradient_w(new.w, new.delta), new.gradient))

    @staticmethod
    def blocks(problem: Problem) -> int:  # noqa: ARG004
        """Return 1, as in Corollaries 3 and 4."""
        return 1
