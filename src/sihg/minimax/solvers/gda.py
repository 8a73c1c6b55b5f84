"""GDA: simultaneous proximal gradient descent ascent."""

from dataclasses import dataclass

from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import Method, State


@dataclass(frozen=True)
class GDA(Method[State]):
    """Plain descent ascent, which circles or diverges on many saddle problems.

    w^{k+1} = prox_f^sigma[w^k - sigma grad_w phi],  delta^{k+1} = prox_g^tau[delta^k + tau grad_delta phi], both at
    (w^k, delta^k).
    """

    def step(self, oracle: Oracle, s: State, i: int) -> State:  # noqa: ARG002
        """Do one iteration."""
        g_w, g_delta = oracle.gradients(s.w, s.delta)
        w = oracle.prox_f(s.w - self.sigma * g_w, self.sigma)
        return State(w, oracle.prox_g(s.delta + self.tau * g_delta, self.tau))
