"""CurvatureEG+ (Pethick, Latafat, Patrinos, Fercoq & Cevher, ICLR 2022, arXiv 2302.09831, Algorithm 2)."""

from dataclasses import dataclass
from math import hypot, inf

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.minimax._oracle import DivergedError, Oracle, StalledError
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method, norm
from sihg.minimax.solvers.halfspace import INSIDE, FreeState, assumed_rho, halfspace_alpha, known_rho
from sihg.minimax.solvers.ranges import check_inside
from sihg.minimax.solvers.saddle_operator import Operator, Vector
from sihg.minimax.step_sizes import StepSizes

FIRST_PRODUCTS = 5  # of the power iteration, before the first step; later one per iteration
MAX_SHORTENINGS = 60
ROUNDINGS, SHORT = 8, 1e-3  # a step of so many roundings, and of this share of the first one, gets nowhere
UNDER = 0.999  # or rounding would halve gamma where the curvature is the same in all directions


@dataclass(frozen=True)
class CurvatureState(FreeState):
    """The direction of the power iteration, kept from iteration to iteration."""

    u_w: Tensor | None = None
    u_delta: Tensor | None = None


@dataclass(frozen=True)
class CurvatureEGPlus(Method[CurvatureState]):
    """AdaptiveEG+ whose step gamma_k follows the local curvature.

        gamma = nu / ||JF(z^k)||, times `shorten` while gamma ||F(z_bar) - F(z^k)|| > nu ||z_bar - z^k||,
        z_bar = (id + gamma A)^{-1}{z^k - gamma F(z^k)}
        then alpha_k and z^{k+1} of AdaptiveEG+ with gamma_k = gamma

    sigma and tau are factors of gamma for w and delta: only their ratio matters, and no Lipschitz constant is needed.
    ||JF(z)|| = ||D^2 phi(z)|| is estimated by power iteration on differences of gradients, one per iteration; the line
    search corrects an estimate that is too small, also where F is not the gradient of any phi. It converges for rho <
    gamma_k.
    """

    state = CurvatureState
    adapts_itself = True
    needs_constants = False

    nu: float = 0.99  # in (0, 1)
    shorten: float = 0.5  # in (0, 1)
    relaxation: float = 1.0  # in (0, 2)

    def __post_init__(self) -> None:
        check_inside(self, nu=(0, 1), shorten=(0, 1), relaxation=(0, 2))

    def step(self, oracle: Oracle, s: CurvatureState, i: int) -> CurvatureState:  # noqa: ARG002
        """Do one iteration."""
        unit, z = Operator(oracle, self.sigma, self.tau), s.free
        Fz = unit.F(z)
        curvature, u = _curvature(unit, z, Fz, s)
        op, z_bar, F_bar = self._line_search(oracle, z, Fz, UNDER * self.nu / curvature if curvature > 0 else 1.0)
        h = z - z_bar + op.Gamma(F_bar - Fz)
        rho = min(known_rho(oracle), INSIDE * min(op.sigma, op.tau))
        z = z - self.relaxation * halfspace_alpha(op, z, z_bar, h, rho) * h
        return CurvatureState(z_bar.w, z_bar.delta, w_free=z.w, delta_free=z.delta, u_w=u.w, u_delta=u.delta)

    def _line_search(self, oracle: Oracle, z: Vector, Fz: Vector, gamma: float) -> tuple[Operator, Vector, Vector]:
        longest, rounding = 0.0, ROUNDINGS * torch.finfo(z.w.dtype).eps
        for trial in range(1, MAX_SHORTENINGS + 1):
            op = Operator(oracle, gamma * self.sigma, gamma * self.tau)
            try:
                z_bar = op.resolvent(z - op.Gamma(Fz))
            except DivergedError:
                if trial == MAX_SHORTENINGS:
                    raise
            else:
                F_bar, moved = op.F(z_bar), _size(z_bar - z)
                longest = max(longest, moved)
                if moved <= rounding * _size(z) < SHORT * longest:
                    raise StalledError("F changes too much along any step; take another method")
                if op.norm(op.Gamma(F_bar - Fz)) <= self.nu * op.norm(z_bar - z) < inf:  # false for NaN
                    break
            gamma *= self.shorten
        return op, z_bar, F_bar

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:  # noqa: ARG003
        """Choose equal factors of the adaptive step."""
        return StepSizes(1.0, 1.0, 1.0, "factors of the step by local curvature" + assumed_rho(problem))


def _curvature(op: Operator, z: Vector, Fz: Vector, s: CurvatureState) -> tuple[float, Vector]:
    """Return an estimate of ||Gamma^{1/2} D^2 phi(z) Gamma^{1/2}||, and the direction for the next one."""
    if s.u_w is None or s.u_delta is None:
        u, products = _drawn(z), FIRST_PRODUCTS
    else:
        u, products = Vector(s.u_w, s.u_delta), 1
    root_sigma, root_tau = op.sigma**0.5, op.tau**0.5
    size = max(1.0, float(z.w.norm()), float(z.delta.norm()))
    largest = 0.0
    for _ in range(products):
        u = 1 / max(float((u.w @ u.w + u.delta @ u.delta) ** 0.5), torch.finfo(z.w.dtype).tiny) * u
        direction = Vector(root_sigma * u.w, root_tau * u.delta)
        difference = torch.finfo(z.w.dtype).eps ** 0.5 * size / max(root_sigma, root_tau)
        change = 1 / difference * (op.F(z + difference * direction) - Fz)
        u = Vector(root_sigma * change.w, -root_tau * change.delta)  # D^2 phi = diag(1, -1) JF is symmetric
        length = float((u.w @ u.w + u.delta @ u.delta) ** 0.5)
        if 0 < length < inf:
            largest = max(largest, length)
        else:  # of no use as a direction: it would stay so for ever
            u = _drawn(z)
    return largest, u


def _size(z: Vector) -> float:
    return hypot(norm(z.w), norm(z.delta))


def _drawn(z: Vector) -> Vector:
    draw = generator(0, "curvature-eg+")
    return Vector(_normal(z.w, draw), _normal(z.delta, draw))


def _normal(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=draw, dtype=like.dtype).to(like.device)
