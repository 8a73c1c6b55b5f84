"""Extragradient (Korpelevich 1976) and its weak-MVI variant EG+ (Diakonikolas et al. 2021; Pethick et al. 2022)."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import Method, State
from sihg.minimax.solvers.ranges import check_inside


@dataclass(frozen=True)
class Extragradient(Method[State]):
    """A look-ahead step, then a step from the old point with the gradient found there.

    z_bar = prox[z^k - s F(z^k)],  z^{k+1} = prox[z^k - s F(z_bar)],  F = (grad_w phi, -grad_delta phi)
    """

    default_step = (0.95, "step below 1/L")
    bound = 0.9

    def step(self, oracle: Oracle, s: State, i: int) -> State:  # noqa: ARG002
        """Do one iteration."""
        ahead = self._ahead(oracle, s)
        g_w, g_delta = oracle.gradients(ahead.w, ahead.delta)
        w = oracle.prox_f(s.w - self.sigma * g_w, self.sigma)
        return State(w, oracle.prox_g(s.delta + self.tau * g_delta, self.tau))

    def local_ratio(self, oracle: RememberingOracle, s: State, new: State, i: int) -> float:  # noqa: ARG002
        """Compare F(z_bar) with F(z^k) (Khobotov 1987)."""
        ahead = self._ahead(oracle, s)
        return self.operator_ratio(s, ahead, oracle.gradients(s.w, s.delta), oracle.gradients(ahead.w, ahead.delta))

    def _ahead(self, oracle: Oracle, s: State) -> State:
        g_w, g_delta = oracle.gradients(s.w, s.delta)
        w = oracle.prox_f(s.w - self.sigma * g_w, self.sigma)
        return State(w, oracle.prox_g(s.delta + self.tau * g_delta, self.tau))


@dataclass(frozen=True)
class EGPlusState(State):
    """The look-ahead point, which is feasible, and the iterate, which may be infeasible."""

    w_free: Tensor | None = None
    delta_free: Tensor | None = None


@dataclass(frozen=True)
class EGPlus(Method[EGPlusState]):
    """A long look-ahead step and a shorter step, which tolerates some nonmonotonicity.

    z_bar = prox[H(z^k)],  z^{k+1} = z^k - ratio {H(z^k) - H(z_bar)},  H(z) = z - s F(z)

    Without f and g this is z^{k+1} = z^k - ratio s F(z_bar). The answer and the measured point are z_bar.
    """

    state = EGPlusState
    default_step = (0.95, "step below 1/L")
    balances = False  # as for the other methods for weak MVIs
    bound = 0.9

    ratio: float = 0.5

    def __post_init__(self) -> None:
        check_inside(self, ratio=(0, inf))

    def step(self, oracle: Oracle, s: EGPlusState, i: int) -> EGPlusState:  # noqa: ARG002
        """Do one iteration."""
        w_k, delta_k = s.w if s.w_free is None else s.w_free, s.delta if s.delta_free is None else s.delta_free
        h_w, h_delta = self._forward(oracle, w_k, delta_k)
        w, delta = oracle.prox_f(h_w, self.sigma), oracle.prox_g(h_delta, self.tau)
        bar_w, bar_delta = self._forward(oracle, w, delta)
        w_free, delta_free = w_k - self.ratio * (h_w - bar_w), delta_k - self.ratio * (h_delta - bar_delta)
        return EGPlusState(w, delta, w_free=w_free, delta_free=delta_free)

    def local_ratio(self, oracle: RememberingOracle, s: EGPlusState, new: EGPlusState, i: int) -> float:  # noqa: ARG002
        """Compare F(z_bar) with F(z^k)."""
        at = State(s.w if s.w_free is None else s.w_free, s.delta if s.delta_free is None else s.delta_free)
        return self.operator_ratio(at, new, oracle.gradients(at.w, at.delta), oracle.gradients(new.w, new.delta))

    def _forward(self, oracle: Oracle, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        g_w, g_delta = oracle.gradients(w, delta)
        return w - self.sigma * g_w, delta + self.tau * g_delta
