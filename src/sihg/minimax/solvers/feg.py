"""FEG: the fast extragradient method, anchored at the start (Lee & Kim, NeurIPS 2021; EAG of Yoon & Ryu 2021)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import State
from sihg.minimax.solvers.halfspace import WeakMVIMethod, known_rho
from sihg.minimax.solvers.saddle_operator import Operator, Vector


@dataclass(frozen=True)
class FEGState(State):
    """The iterate, its number, the anchor z^0, and c^k in A(z^k)."""

    k: int = 0
    w_anchor: Tensor | None = None
    delta_anchor: Tensor | None = None
    c_w: Tensor | None = None
    c_delta: Tensor | None = None


@dataclass(frozen=True)
class FEG(WeakMVIMethod[FEGState]):
    """An extragradient step that is pulled back to the start with the weight 1/(k+1).

        y = z^k + b (z^0 - z^k),  b = 1 / (k+1),  v^k = F(z^k) + c^k
        z_half = y - (1 - b) (Gamma - rho) v^k
        p = y - Gamma F(z_half) + (1 - b) rho v^k
        z^{k+1} = (id + Gamma A)^{-1} p,  c^{k+1} = Gamma^{-1} (p - z^{k+1})

    With sigma = tau = 1/L this is the method of Lee & Kim, in the constrained form of Cai, Oikonomou & Zheng (ICML
    2024). Then ||v^k|| falls like 1/k, the best rate for these problems, if F + A is comonotone with rho < 1/L:
    <v - v', z - z'> >= -(rho/2) ||v - v'||^2 for all pairs of points, which asks more than a weak MVI. rho = 0 is the
    anchored extragradient for monotone problems.
    """

    state = FEGState
    default_step = (1.0, "step 1/L")

    def step(self, oracle: Oracle, s: FEGState, i: int) -> FEGState:  # noqa: ARG002
        """Do one iteration."""
        op = Operator(oracle, self.sigma, self.tau)
        anchor, half, base = self._look_ahead(op, s)
        p = base - op.Gamma(op.F(half))
        z = op.resolvent(p)
        return FEGState(
            *(z.w, z.delta),
            k=s.k + 1,
            w_anchor=anchor.w,
            delta_anchor=anchor.delta,
            c_w=(p.w - z.w) / self.sigma,
            c_delta=(p.delta - z.delta) / self.tau,
        )

    def local_ratio(self, oracle: RememberingOracle, s: FEGState, new: FEGState, i: int) -> float:  # noqa: ARG002
        """Compare F(z_half) with F(z^{k+1})."""
        _, half, _ = self._look_ahead(Operator(oracle, self.sigma, self.tau), s)
        before, after = oracle.gradients(half.w, half.delta), oracle.gradients(new.w, new.delta)
        return self.operator_ratio(State(half.w, half.delta), new, before, after)

    def _look_ahead(self, op: Operator, s: FEGState) -> tuple[Vector, Vector, Vector]:
        """Return z^0, z_half, and y + (1 - b) rho v^k."""
        z, b = Vector(s.w, s.delta), 1 / (s.k + 1)
        if s.w_anchor is None or s.delta_anchor is None or s.c_w is None or s.c_delta is None:
            return z, z, z  # b = 1: v^0 counts for nothing
        anchor, v = Vector(s.w_anchor, s.delta_anchor), op.F(z) + Vector(s.c_w, s.c_delta)
        rho = min(known_rho(op.oracle), min(self.sigma, self.tau))  # a larger one would amplify c
        base = z + b * (anchor - z) + (1 - b) * rho * v
        return anchor, base - (1 - b) * op.Gamma(v), base
