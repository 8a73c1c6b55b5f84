"""DS-GDA: doubly smoothed descent ascent (Zheng, Zhu, So, Blanchet & Li, NeurIPS 2023)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.altgda import AlternatingMethod
from sihg.minimax.solvers.base import State
from sihg.minimax.solvers.ranges import check_inside


@dataclass(frozen=True)
class DSGDAState(State):
    """The iterate and the smoothed centres of both variables."""

    p: Tensor | None = None
    q: Tensor | None = None


@dataclass(frozen=True)
class DSGDA(AlternatingMethod[DSGDAState]):
    """Alternating descent ascent on phi + (r_w/2) ||w - p||^2 - (r_delta/2) ||delta - q||^2, with centres that follow.

        w^{k+1} = prox_f^sigma[w^k - sigma grad_w phi(w^k, delta^k) - pull (w^k - p^k)]
        delta^{k+1} = prox_g^tau[delta^k + tau grad_delta phi(w^{k+1}, delta^k) - pull (delta^k - q^k)]
        p^{k+1} = p^k + follow (w^{k+1} - p^k),  q^{k+1} = q^k + follow (delta^{k+1} - q^k)

    Here pull = sigma r_w = tau r_delta: one set for both variables, as the paper's universal choice. The default r = L,
    sigma = tau = 1/(4L), follow = 0.1 is ours, and converges on a w delta + (b/2)(w^2 - delta^2) for b >= -0.4 a. The
    theorem's constants admit about r = 25L, sigma = 1/(76L), follow = 8e-4, which is a thousand times slower. It asks
    one-sided concavity or a one-sided KL condition instead of a weak MVI.
    """

    state = DSGDAState  # its first step takes p^0 = w^0 and q^0 = delta^0
    default_step = (0.25, "step 1/(4L)")
    bound = 0.25

    pull: float = 0.25
    follow: float = 0.1

    def __post_init__(self) -> None:
        check_inside(self, pull=(0, 1), follow=(0, 1))

    def step(self, oracle: Oracle, s: DSGDAState, i: int) -> DSGDAState:  # noqa: ARG002
        """Do one iteration."""
        p, q = s.w if s.p is None else s.p, s.delta if s.q is None else s.q
        g_w = oracle.gradient_w(s.w, s.delta)
        w = oracle.prox_f(s.w - self.sigma * g_w - self.pull * (s.w - p), self.sigma)
        g_delta = oracle.gradient_delta(w, s.delta)
        delta = oracle.prox_g(s.delta + self.tau * g_delta - self.pull * (s.delta - q), self.tau)
        return DSGDAState(w, delta, p=p + self.follow * (w - p), q=q + self.follow * (delta - q))
