"""SPDHG: stochastic primal-dual hybrid gradient with uniform sampling (Chambolle et al. 2018, Algorithm 1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import State, change
from sihg.minimax.solvers.theorems import HybridMethod


@dataclass(frozen=True)
class SPDHGState(State):
    """The iterate with z = A^T delta and its extrapolation."""

    z: Tensor | None = None
    z_bar: Tensor | None = None
    sigma: float | None = None  # the step that led here


@dataclass(frozen=True)
class SPDHG(HybridMethod[SPDHGState]):
    """Stochastic PDHG, for bilinear phi_i = <A_i w, delta_i> only.

    w^{k+1} = prox_f^sigma[w^k - sigma z_bar^k]
    delta_i^{k+1} = prox_{g_i}^tau[delta_i^k + tau A_i w^{k+1}],  i = i_k
    z^{k+1} = z^k + dz,  z_bar^{k+1} = z^{k+1} + theta n dz,  dz = A_i^T (delta_i^{k+1} - delta_i^k)
    """

    state = SPDHGState
    bilinear_only = True

    def step(self, oracle: Oracle, s: SPDHGState, i: int) -> SPDHGState:
        """Do one iteration."""
        z = oracle.gradient_w(s.w, s.delta).clone() if s.z is None else s.z
        w = oracle.prox_f(s.w.sub(self._direction(s, z), alpha=self.sigma), self.sigma)
        old = oracle.block(s.delta, i)
        Aw = oracle.gradient_delta_of(w, old, oracle.problem.only(i))
        new = oracle.prox_g_block(i, old.add(Aw, alpha=self.tau), self.tau)
        dz = oracle.gradient_w_change(w, i, new, old)
        z = z + dz
        z_bar = z.add(dz, alpha=self.theta * oracle.n)
        return SPDHGState(w, oracle.replace(s.delta, i, new), z=z, z_bar=z_bar, sigma=self.sigma)

    def local_ratio(self, oracle: RememberingOracle, s: SPDHGState, new: SPDHGState, i: int) -> float:  # noqa: ARG002
        """Return the ratio for the extrapolation n dz of the next iteration."""
        assert new.z is not None
        before = oracle.gradient_w(s.w, s.delta) if s.z is None else s.z
        return self.mixed_ratio(oracle, s, new, change(new.z, before, times=oracle.n))

    def _direction(self, s: SPDHGState, z: Tensor) -> Tensor:
        """Return z_bar; if sigma changed, its extrapolation times the old sigma over the new one."""
        if s.z_bar is None or s.sigma is None:
            return z
        return s.z_bar if s.sigma == self.sigma else torch.lerp(z, s.z_bar, s.sigma / self.sigma)
