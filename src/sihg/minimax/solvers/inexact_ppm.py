"""The error-corrected inexact proximal point method (Pethick, Mavrothalassitis & Cevher, ICLR 2025)."""

from dataclasses import dataclass
from math import inf

from torch import finfo

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle, StalledError
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import State
from sihg.minimax.solvers.halfspace import INSIDE, FreeState, WeakMVIMethod, halfspace_alpha, known_rho
from sihg.minimax.solvers.ranges import check_count, check_inside
from sihg.minimax.solvers.saddle_operator import Operator, Vector
from sihg.minimax.step_sizes import StepSizes

ROUNDINGS = 8  # a step this small is rounding, in which alpha has no meaning


@dataclass(frozen=True)
class InexactPPM(WeakMVIMethod[FreeState]):
    """An implicit step in w and delta, solved just well enough, then the projection on a halfspace.

        z_0 = z^k,  z_{t+1} = (id + Gamma A)^{-1}{z^k - Gamma F(z_t)},  t = 0, 1, ...
        h_t = z^k - z_{t+1} + Gamma {F(z_{t+1}) - F(z_t)}, which is in Gamma T(z_{t+1}): the error is corrected
        alpha_t = <h_t, z^k - z_{t+1}> / ||h_t||^2 - rho / (2 gamma)
        z^{k+1} = z^k - relaxation alpha_t h_t,  for the first t with alpha_t >= accept (1 - rho / (2 gamma))

    An exact step has alpha = 1 - rho / (2 gamma). One inner step is AdaptiveEG+; more are taken only where it is not
    enough. It converges for gamma < 1/L and rho < 2 gamma, that is for rho < 2/L (the range of Alacaoglu, Kim & Wright
    2024, who solve the implicit step to a growing accuracy). With relaxation 1, for each k in the norm of Gamma^{-1},

        ||z^{k+1} - z*||^2 <= ||z^k - z*||^2 - alpha_t^2 ||h_t||^2

    The answer and the measured point are z_{t+1}. The test by alpha_t is ours; the paper bounds the error instead.
    """

    state = FreeState
    rho_per_step = 2.0
    default_step = (0.95, "step below 1/L")

    relaxation: float = 1.0  # in (0, 2)
    accept: float = 0.5  # in (0, 1): nearer to 1 asks more inner steps
    inner_limit: int = 100

    def __post_init__(self) -> None:
        check_inside(self, relaxation=(0, 2), accept=(0, 1))
        check_count(self, "inner_limit")

    def step(self, oracle: Oracle, s: FreeState, i: int) -> FreeState:  # noqa: ARG002
        """Do one iteration."""
        op, z = Operator(oracle, self.sigma, self.tau), s.free
        rho = min(known_rho(oracle), 2 * INSIDE * min(self.sigma, self.tau))
        wanted = self.accept * (1 - rho / (2 * min(self.sigma, self.tau)))
        z_t, F_t, before = z, op.F(z), inf
        noise = ROUNDINGS * finfo(z.w.dtype).eps * (op.norm(z) + op.norm(op.Gamma(F_t)))
        for _ in range(self.inner_limit):
            z_bar, F_bar, h = _inner_step(op, z, F_t)
            alpha, moved = halfspace_alpha(op, z, z_bar, h, rho), op.norm(z_bar - z_t)
            z_t, F_t = z_bar, F_bar
            if alpha >= wanted or op.norm(h) <= noise or moved >= before:  # the last: gamma L > 1, no contraction
                break
            before = moved
        if alpha <= 0 and op.norm(h) > noise:
            raise StalledError("the halfspace does not exclude the iterate; lower sigma and tau, or use adaptive steps")
        z = z - self.relaxation * max(alpha, 0.0) * h
        return FreeState(z_t.w, z_t.delta, w_free=z.w, delta_free=z.delta)

    def local_ratio(self, oracle: RememberingOracle, s: FreeState, new: FreeState, i: int) -> float:  # noqa: ARG002
        """Compare F(z_1) with F(z^k): how well the inner iteration contracts."""
        op, z = Operator(oracle, self.sigma, self.tau), s.free
        first, before = op.resolvent(z - op.Gamma(op.F(z))), oracle.gradients(z.w, z.delta)
        ends = State(z.w, z.delta), State(first.w, first.delta)
        return self.operator_ratio(*ends, before, oracle.gradients(first.w, first.delta))

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:
        """Choose a step below 1/L, half-way between rho/2 and 1/L if rho is large."""
        steps = super().choose(problem, constants)
        limit, rho = steps.sigma / cls.default_step[0], problem.constants.rho or 0.0
        step = max(steps.sigma, (rho / 2 + limit) / 2) if rho < 2 * limit else steps.sigma
        return StepSizes(step, step, 1.0, steps.source)


def _inner_step(op: Operator, z: Vector, F_t: Vector) -> tuple[Vector, Vector, Vector]:
    """Return z_{t+1}, F(z_{t+1}) and h_t."""
    z_bar = op.resolvent(z - op.Gamma(F_t))
    F_bar = op.F(z_bar)
    return z_bar, F_bar, z - z_bar + op.Gamma(F_bar - F_t)
