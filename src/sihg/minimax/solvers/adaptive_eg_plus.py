"""AdaptiveEG+ (Pethick, Latafat, Patrinos, Fercoq & Cevher, ICLR 2022, arXiv 2302.09831, Algorithm 1)."""

from dataclasses import dataclass

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import State
from sihg.minimax.solvers.halfspace import INSIDE, FreeState, WeakMVIMethod, halfspace_alpha, known_rho
from sihg.minimax.solvers.ranges import check_inside
from sihg.minimax.solvers.saddle_operator import Operator


@dataclass(frozen=True)
class AdaptiveEGPlus(WeakMVIMethod[FreeState]):
    """A look-ahead step, then the projection on the halfspace that holds the solutions of a weak MVI.

        z_bar = (id + Gamma A)^{-1} H(z^k),  H = id - Gamma F
        alpha_k = <z_bar - z^k, H(z_bar) - H(z^k)> / ||H(z_bar) - H(z^k)||^2 - rho / (2 gamma)
        z^{k+1} = z^k + relaxation alpha_k {H(z_bar) - H(z^k)}

    Here Gamma = diag(sigma, tau), gamma = sigma = tau in the paper, and norms are those of Gamma^{-1}. It converges for
    gamma <= 1/L and rho < gamma, that is for rho < 1/L. The answer and the measured point are z_bar.
    """

    state = FreeState
    default_step = (0.95, "step below 1/L")

    relaxation: float = 1.0  # in (0, 2)

    def __post_init__(self) -> None:
        check_inside(self, relaxation=(0, 2))

    def step(self, oracle: Oracle, s: FreeState, i: int) -> FreeState:  # noqa: ARG002
        """Do one iteration."""
        op, z = Operator(oracle, self.sigma, self.tau), s.free
        H = z - op.Gamma(op.F(z))
        z_bar = op.resolvent(H)
        h = H - (z_bar - op.Gamma(op.F(z_bar)))
        rho = min(known_rho(oracle), INSIDE * min(self.sigma, self.tau))
        z = z - self.relaxation * halfspace_alpha(op, z, z_bar, h, rho) * h
        return FreeState(z_bar.w, z_bar.delta, w_free=z.w, delta_free=z.delta)

    def local_ratio(self, oracle: RememberingOracle, s: FreeState, new: FreeState, i: int) -> float:  # noqa: ARG002
        """Compare F(z_bar) with F(z^k)."""
        z = State(s.free.w, s.free.delta)
        return self.operator_ratio(z, new, oracle.gradients(z.w, z.delta), oracle.gradients(new.w, new.delta))
