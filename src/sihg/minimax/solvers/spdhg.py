"""SPDHG: stochastic primal-dual hybrid gradient with uniform sampling (Chambolle et al. 2018, Algorithm 1)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import State
from sihg.minimax.solvers.theorems import HybridMethod


@dataclass(frozen=True)
class SPDHGState(State):
    """The iterate with z = A^T delta and its extrapolation."""

    z: Tensor | None = None
    z_bar: Tensor | None = None


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
        w = oracle.prox_f(s.w.sub(z if s.z_bar is None else s.z_bar, alpha=self.sigma), self.sigma)
        old = oracle.block(s.delta, i)
        Aw = oracle.gradient_delta_of(w, old, oracle.problem.only(i))
        new = oracle.prox_g_block(i, old.add(Aw, alpha=self.tau), self.tau)
        dz = oracle.gradient_w_change(w, i, new, old)
        z = z + dz
        return SPDHGState(w, oracle.replace(s.delta, i, new), z=z, z_bar=z.add(dz, alpha=self.theta * oracle.n))
