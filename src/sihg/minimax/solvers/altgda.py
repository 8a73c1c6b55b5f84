"""Alternating descent ascent with momentum (Gidel et al., "Negative momentum for improved game dynamics", 2019)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import Method, S, State
from sihg.minimax.solvers.ranges import check_inside


@dataclass(frozen=True)
class AlternatingMethod(Method[S]):
    """A method that steps in w, then in delta at the new w."""

    def local_ratio(self, oracle: RememberingOracle, s: S, new: S, i: int) -> float:  # noqa: ARG002
        """Compare grad_w phi at both ends, and grad_delta phi at both ends of the step in delta.

        The last of these gradients is of no use to the next step.
        """
        before = oracle.gradient_w(s.w, s.delta), oracle.gradient_delta(new.w, s.delta)
        after = oracle.gradient_w(new.w, new.delta), oracle.gradient_delta(new.w, new.delta)
        return self.operator_ratio(s, new, before, after)


@dataclass(frozen=True)
class AltGDAState(State):
    """The iterate and the one before it."""

    w_before: Tensor | None = None
    delta_before: Tensor | None = None


@dataclass(frozen=True)
class AltGDA(AlternatingMethod[AltGDAState]):
    """Descent on w, then ascent on delta at the new w, each with heavy-ball momentum.

        w^{k+1} = prox_f^sigma[w^k - sigma grad_w phi(w^k, delta^k) + a (w^k - w^{k-1})],  a = momentum_w
        delta^{k+1} = prox_g^tau[delta^k + tau grad_delta phi(w^{k+1}, delta^k) + b (delta^k - delta^{k-1})]

    b is `momentum_delta`. With the defaults a = -1/2 and b = 0 it converges linearly for bilinear phi without f and g,
    if sigma = tau <= 1/L12; without momentum it only stays bounded there. No theorem covers f, g or nonmonotone phi.
    """

    state = AltGDAState  # its first step has no momentum
    default_step = (0.95, "step below 1/L")
    bound = 0.9

    momentum_w: float = -0.5
    momentum_delta: float = 0.0

    def __post_init__(self) -> None:
        check_inside(self, momentum_w=(-1, 1), momentum_delta=(-1, 1))

    def step(self, oracle: Oracle, s: AltGDAState, i: int) -> AltGDAState:  # noqa: ARG002
        """Do one iteration."""
        inertia_w = 0.0 if s.w_before is None else self.momentum_w * (s.w - s.w_before)
        inertia_delta = 0.0 if s.delta_before is None else self.momentum_delta * (s.delta - s.delta_before)
        w = oracle.prox_f(s.w - self.sigma * oracle.gradient_w(s.w, s.delta) + inertia_w, self.sigma)
        slope = oracle.gradient_delta(w, s.delta)
        delta = oracle.prox_g(s.delta + self.tau * slope + inertia_delta, self.tau)
        return AltGDAState(w, delta, w_before=s.w, delta_before=s.delta)
