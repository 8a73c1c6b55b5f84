"""MGDA: several ascent steps on delta, then one descent step on w (Nouiehed et al. 2019)."""

from dataclasses import dataclass

from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import Method, State


@dataclass(frozen=True)
class MGDA(Method[State]):
    """delta <- prox_g^tau[delta + tau grad_delta phi(w^k, delta)], `ascent_steps` times, then w at the new delta.

    w^{k+1} = prox_f^sigma[w^k - sigma grad_w phi(w^k, delta^{k+1})]
    """

    ascent_steps: int = 10

    def step(self, oracle: Oracle, s: State, i: int) -> State:  # noqa: ARG002
        """Do one iteration."""
        delta = s.delta
        for _ in range(self.ascent_steps):
            delta = oracle.prox_g(delta + self.tau * oracle.gradient_delta(s.w, delta), self.tau)
        return State(oracle.prox_f(s.w - self.sigma * oracle.gradient_w(s.w, delta), self.sigma), delta)
