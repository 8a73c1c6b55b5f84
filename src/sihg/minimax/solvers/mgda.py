"""MGDA: several ascent steps on delta, then one descent step on w (Nouiehed et al. 2019)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import Method, State, change, norm, quotient
from sihg.minimax.solvers.ranges import check_count


@dataclass(frozen=True)
class MGDAState(State):
    """The iterate, and the previous w with the gradient that moved it."""

    w_before: Tensor | None = None
    gradient: Tensor | None = None


@dataclass(frozen=True)
class MGDA(Method[MGDAState]):
    """delta <- prox_g^tau[delta + tau grad_delta phi(w^k, delta)], `ascent_steps` times, then w at the new delta.

    w^{k+1} = prox_f^sigma[w^k - sigma grad_w phi(w^k, delta^{k+1})]
    """

    state = MGDAState

    ascent_steps: int = 10

    def __post_init__(self) -> None:
        check_count(self, "ascent_steps")

    def step(self, oracle: Oracle, s: MGDAState, i: int) -> MGDAState:  # noqa: ARG002
        """Do one iteration."""
        delta = s.delta
        for _ in range(self.ascent_steps):
            delta = self._ascent(oracle, s.w, delta)
        g_w = oracle.gradient_w(s.w, delta)
        return MGDAState(oracle.prox_f(s.w - self.sigma * g_w, self.sigma), delta, w_before=s.w, gradient=g_w)

    def local_ratio(self, oracle: RememberingOracle, s: MGDAState, new: MGDAState, i: int) -> float:  # noqa: ARG002
        """Return the larger of sigma |dg_w| / |dw| since the last iteration and tau |dg_delta| / |ddelta| of an ascent.

        The first is the curvature of w -> max phi, since delta has followed w.
        """
        first = self._ascent(oracle, s.w, s.delta)
        changed = change(oracle.gradient_delta(s.w, first), oracle.gradient_delta(s.w, s.delta))
        ratio = self.tau * quotient(changed, norm(first - s.delta))
        if s.w_before is None or s.gradient is None or new.gradient is None:
            return ratio
        return max(ratio, self.sigma * quotient(change(new.gradient, s.gradient), norm(s.w - s.w_before)))

    def _ascent(self, oracle: Oracle, w: Tensor, delta: Tensor) -> Tensor:
        return oracle.prox_g(delta + self.tau * oracle.gradient_delta(w, delta), self.tau)
