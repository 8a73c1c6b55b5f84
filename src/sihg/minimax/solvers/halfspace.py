"""What the methods for weak MVIs share: the halfspace projection, and how large a rho their theorems admit.

rho is the paper's: <v, z - z*> >= -(rho/2) ||v||^2 for all v in T(z). It is -2 rho of Pethick et al., and rho of Boehm.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sihg.minimax._oracle import Oracle
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method, S, State
from sihg.minimax.solvers.saddle_operator import Operator, Vector
from sihg.minimax.step_sizes import Condition, StepSizes, operator_steps

INSIDE = 0.98  # of the largest rho for which the halfspace is known to exclude z


@dataclass(frozen=True)
class FreeState(State):
    """A feasible point, which is the answer, and the iterate, which may be infeasible."""

    w_free: Tensor | None = None
    delta_free: Tensor | None = None

    @property
    def free(self) -> Vector:
        """The iterate; at the start it is the answer."""
        w = self.w if self.w_free is None else self.w_free
        return Vector(w, self.delta if self.delta_free is None else self.delta_free)


def known_rho(oracle: Oracle) -> float:
    """Return the problem's rho; 0 if it is not known."""
    return oracle.problem.constants.rho or 0.0


def assumed_rho(problem: Problem) -> str:
    """Return what the source of the step sizes adds if rho is not known."""
    known = problem.constants.rho is not None or problem.constants.mu or problem.bilinear_in_both
    return "" if known else ", rho not known and taken as 0"


def halfspace_alpha(op: Operator, z: Vector, z_bar: Vector, h: Vector, rho: float) -> float:
    """Return the alpha for which z - alpha h is on the boundary of the halfspace that holds the solutions.

    With h = Gamma v and v in T(z_bar), every solution u has <v, z_bar - u> >= -(rho/2) ||v||^2.
    """
    size = op.dot(h, h)
    if size == 0:
        return 0.0  # 0 is in T(z_bar): it is a solution
    v_squared = float(h.w @ h.w) / op.sigma**2 + float(h.delta @ h.delta) / op.tau**2
    return (op.dot(h, z - z_bar) - rho / 2 * v_squared) / size


@dataclass(frozen=True)
class WeakMVIMethod(Method[S]):
    """A method with a theorem for weak MVIs: a step up to `largest_step` / L admits rho < `rho_per_step` times it."""

    balances = False  # rho is admitted up to a multiple of min(sigma, tau)
    bound = 0.9
    rho_per_step: ClassVar[float] = 1.0

    @property
    def largest_step(self) -> float:
        """The largest step that the theorem covers, times 1/L."""
        return 1.0

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:
        """Choose sigma = tau = `default_step`, and say if rho is not known."""
        steps = operator_steps(constants, *cls.default_step)
        return StepSizes(steps.sigma, steps.tau, 1.0, steps.source + assumed_rho(problem))

    def condition(self, problem: Problem, constants: Constants, steps: StepSizes) -> Condition:  # noqa: ARG002
        """Check that the steps are at most `largest_step` / L and admit rho."""
        L = max(constants.L11 or 0.0, constants.L22 or 0.0) + (constants.L12 or 0.0)
        step, admitted = max(steps.sigma, steps.tau), self.rho_per_step * min(steps.sigma, steps.tau)
        rho = constants.rho or 0.0
        return Condition(
            step * L <= self.largest_step * (1 + 1e-12) and rho < admitted,
            f"{type(self).__name__} asks a step <= {self.largest_step:.3g}/L, here {step * L:.4g}/L with L <= {L:.4g}, "
            f"and then admits rho < {admitted:.4g}; the problem has {rho:.4g}",
        )
