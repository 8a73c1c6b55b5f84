"""MGDA: several ascent steps on delta, then one descent step on w (Nouiehed et al. 2019)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import Method, State, change, norm, quotient
from sihg.minimax.solvers.ranges import check_count


@dataclass(frozen=True)
class MGDA(Method[State]):
    """delta <- prox_g^tau[delta + tau grad_delta phi(w^k, delta)], `ascent_steps` times, then w at the new delta.

    w^{k+1} = prox_f^sigma[w^k - sigma grad_w phi(w^k, delta^{k+1})]
    """

    ascent_steps: int = 10

    def __post_init__(self) -> None:
        check_count(self, "ascent_steps")

    def step(self, oracle: Oracle, s: State, i: int) -> State:  # noqa: ARG002
        """Do one iteration."""
        delta = s.delta
        for _ in range(self.ascent_steps):
            delta = self._ascent(oracle, s.w, delta)
        g_w = oracle.gradient_w(s.w, delta)
        return State(oracle.prox_f(s.w - self.sigma * g_w, self.sigma), delta)

    def local_ratio(self, oracle: RememberingOracle, s: State, new: State, i: int) -> float:  # noqa: ARG002
        """Return the larger of sigma |dg_w| / |dw| of the descent and tau |dg_delta| / |ddelta| of the first ascent.

        The gradient in w at the new w is of no use to the next step.
        """
        first = self._ascent(oracle, s.w, s.delta)
        changed = change(oracle.gradient_delta(s.w, first), oracle.gradient_delta(s.w, s.delta))
        ratio = self.tau * quotient(changed, norm(first - s.delta))
        changed = change(oracle.gradient_w(new.w, new.delta), oracle.gradient_w(s.w, new.delta))
        return max(ratio, self.sigma * quotient(changed, norm(new.w - s.w)))

    def _ascent(self, oracle: Oracle, w: Tensor, delta: Tensor) -> Tensor:
        return oracle.prox_g(delta + self.tau * oracle.gradient_delta(w, delta), self.tau)
