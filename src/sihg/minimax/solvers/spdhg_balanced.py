"""A-SPDHG: SPDHG with adaptive step balancing (Chambolle, Delplancke, Ehrhardt, Schoenlieb & Tang, JMIV 2024)."""

from dataclasses import dataclass
from math import inf

from sihg.minimax._oracle import Oracle
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method
from sihg.minimax.solvers.block_norms import block_norms
from sihg.minimax.solvers.ranges import check_inside
from sihg.minimax.solvers.spdhg import SPDHGState
from sihg.minimax.step_sizes import Condition, StepSizes, best_bilinear, bilinear, coupling_constant


@dataclass(frozen=True)
class SPDHGBalancedState(SPDHGState):
    """The state of SPDHG, with the ratio of the steps to sigma and tau, and how much it changes next time."""

    ratio: float = 1.0
    tilt: float | None = None
    scale: float | None = None


@dataclass(frozen=True)
class SPDHGBalanced(Method[SPDHGBalancedState]):
    """Stochastic PDHG that moves sigma_k / tau_k to where both variables progress alike, for bilinear phi only.

        w^{k+1}, delta_i^{k+1}, z^{k+1}, z_bar^{k+1} of SPDHG with theta = 1, sigma_k and tau_k
        v = ||(w^k - w^{k+1}) / sigma_k + n dz||_1
        d = n ||(delta_i^k - delta_i^{k+1}) / tau_k - A_i (w^k - w^{k+1})||_1
        v > band scale d: sigma_{k+1} = sigma_k / (1 - a),  tau_{k+1} = tau_k (1 - a),  a <- decay a
        v < scale d / band: the other way round

    sigma_k tau_k stays as it is, and a is summable: it converges for L12 sqrt(sigma tau n) < 1. This is rule (a) of the
    paper, the stochastic form of Goldstein et al. (2013); a starts at `tilt`, scale is the norm of the block norms.
    """

    state = SPDHGBalancedState
    adapts_itself = True
    bilinear_only = True

    tilt: float = 0.5  # in (0, 1)
    decay: float = 0.95  # in (0, 1)
    band: float = 1.5  # > 1

    def __post_init__(self) -> None:
        check_inside(self, tilt=(0, 1), decay=(0, 1), band=(1, inf))

    def step(self, oracle: Oracle, s: SPDHGBalancedState, i: int) -> SPDHGBalancedState:
        """Do one iteration."""
        n, only = oracle.n, oracle.problem.only(i)
        sigma, tau = self.sigma * s.ratio, self.tau / s.ratio
        z = oracle.gradient_w(s.w, s.delta).clone() if s.z is None else s.z
        w = oracle.prox_f(s.w.sub(z if s.z_bar is None else s.z_bar, alpha=sigma), sigma)
        old = oracle.block(s.delta, i)
        Aw = oracle.gradient_delta_of(w, old, only)
        new = oracle.prox_g_block(i, old.add(Aw, alpha=tau), tau)
        dz = oracle.gradient_w_change(w, i, new, old)
        A_change = oracle.gradient_delta_of(s.w, old, only) - Aw
        v = float(((s.w - w) / sigma).add(dz, alpha=n).abs().sum())
        d = n * float(((old - new) / tau - A_change).abs().sum())
        ratio, tilt, scale = self._balance(oracle, s, v, d)
        z = z + dz
        delta, z_bar = oracle.replace(s.delta, i, new), z.add(dz, alpha=n)
        return SPDHGBalancedState(w, delta, z=z, z_bar=z_bar, ratio=ratio, tilt=tilt, scale=scale)

    def _balance(self, oracle: Oracle, s: SPDHGBalancedState, v: float, d: float) -> tuple[float, float, float]:
        """Return the next ratio, the tilt after it, and the scale."""
        scale = float(block_norms(oracle.problem).norm()) if s.scale is None else s.scale
        tilt = self.tilt if s.tilt is None else s.tilt
        if v > self.band * scale * d:
            return s.ratio / (1 - tilt), self.decay * tilt, scale
        if v < scale * d / self.band:
            return s.ratio * (1 - tilt), self.decay * tilt, scale
        return s.ratio, tilt, scale

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:
        """Choose equal first steps just inside SPDHG's condition."""
        return best_bilinear(L12=coupling_constant(constants, problem.n), n=problem.n)

    def condition(self, problem: Problem, constants: Constants, steps: StepSizes) -> Condition:
        """Check SPDHG's condition."""
        return bilinear(steps.sigma, steps.tau, L12=coupling_constant(constants, problem.n), n=problem.n)
