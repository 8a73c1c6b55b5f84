"""Optimistic descent ascent (Popov 1980; Daskalakis et al. 2018), in proximal form (Malitsky & Tam 2020)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.core.hybrid import hybrid
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import Method, State


@dataclass(frozen=True)
class OptimisticState(State):
    """The iterate and both previous gradients."""

    g_w: Tensor | None = None
    g_delta: Tensor | None = None
    sigma: float | None = None  # the steps that led here
    tau: float | None = None


@dataclass(frozen=True)
class Optimistic(Method[OptimisticState]):
    """The hybrid gradient on both variables: z^{k+1} = prox[z^k - s {2 F(z^k) - F(z^{k-1})}]."""

    state = OptimisticState  # its first step takes z^{-1} = z^0
    default_step = (0.45, "step below 1/(2L)")  # Malitsky & Tam 2020

    def step(self, oracle: Oracle, s: OptimisticState, i: int) -> OptimisticState:  # noqa: ARG002
        """Do one iteration."""
        g_w, g_delta = oracle.gradients(s.w, s.delta)
        # With steps that vary, as in Malitsky & Tam 2020.
        theta_w = 1.0 if s.sigma is None else s.sigma / self.sigma
        theta_delta = theta_w if s.tau is None else s.tau / self.tau
        ahead_w = g_w if s.g_w is None else hybrid(g_w, s.g_w, theta_w)
        ahead_delta = g_delta if s.g_delta is None else hybrid(g_delta, s.g_delta, theta_delta)
        w = oracle.prox_f(s.w - self.sigma * ahead_w, self.sigma)
        delta = oracle.prox_g(s.delta + self.tau * ahead_delta, self.tau)
        return OptimisticState(w, delta, g_w=g_w, g_delta=g_delta, sigma=self.sigma, tau=self.tau)
