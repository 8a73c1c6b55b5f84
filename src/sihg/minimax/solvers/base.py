"""The base of every solver: frozen settings, `init`, and `step` from state to state."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import hypot, inf, sqrt
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.step_sizes import Condition, StepSizes, operator_steps


@dataclass(frozen=True)
class State:
    """An iterate as flat vectors; the state of a method adds what its next step needs."""

    w: Tensor
    delta: Tensor


S = TypeVar("S", bound=State)


Pair = tuple[Tensor, Tensor]  # a gradient in w and one in delta


@dataclass(frozen=True)
class Method(ABC, Generic[S]):
    """A solver; its fields are its settings."""

    state: ClassVar[type[State]] = State  # its class; only w and delta are set before the first step
    implicit: ClassVar[bool] = False  # whether it takes implicit steps, so that tau L22 < 1 matters
    bilinear_only: ClassVar[bool] = False
    needs_constants: ClassVar[bool] = True  # whether `choose` uses them: estimates cost many gradients
    default_step: ClassVar[tuple[float, str]] = (0.5, "the customary step 1/(2L)")  # times 1/L, and its name

    adapts_itself: ClassVar[bool] = False  # whether `step` adapts its steps by a rule of its own
    balances: ClassVar[bool] = True  # whether adaptive steps move tau / sigma also without monotonicity
    bound: ClassVar[float] = 0.45  # nu, below which the line search keeps `local_ratio`

    sigma: float
    tau: float

    @abstractmethod
    def step(self, oracle: Oracle, s: S, i: int) -> S:
        """Do one iteration; i is the drawn block."""

    def local_ratio(self, oracle: RememberingOracle, s: S, new: S, i: int) -> float:  # noqa: ARG002
        """Return a local condition number of the step s -> new with block i; adaptive steps keep it at most `bound`.

        It grows in proportion to sqrt(sigma tau). By default it compares F at both ends. Gradients that the step
        itself took, or that the next step will take, are not counted twice.
        """
        before, after = oracle.gradients(s.w, s.delta), oracle.gradients(new.w, new.delta)
        return self.operator_ratio(s, new, before, after)

    def operator_ratio(self, at: State, to: State, before: Pair, after: Pair) -> float:
        """Return sqrt(sigma |dg_w|^2 + tau |dg_delta|^2) / sqrt(|dw|^2 / sigma + |ddelta|^2 / tau) between two points.

        With sigma = tau = s it is s |dF| / |dz|.
        """
        moved = self.length(norm(to.w - at.w), norm(to.delta - at.delta))
        changed = [change(new, old) for new, old in zip(after, before, strict=True)]
        return quotient(hypot(sqrt(self.sigma) * changed[0], sqrt(self.tau) * changed[1]), moved)

    def length(self, w: float, delta: float) -> float:
        """Return sqrt(w^2 / sigma + delta^2 / tau)."""
        return hypot(w / sqrt(self.sigma), delta / sqrt(self.tau))  # w**2 may overflow

    def measured_at(self, oracle: Oracle, s: S) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the point at which ||F|| is measured."""
        return s.w, s.delta

    def weights(self, problem: Problem, s: S) -> Tensor | None:  # noqa: ARG002
        """Return how often each block is drawn, up to a factor; None for uniform draws."""
        return None

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:  # noqa: ARG003
        """Choose sigma = tau = `default_step`, with L a Lipschitz constant of F."""
        return operator_steps(constants, *cls.default_step)

    @classmethod
    def best_theta(cls, problem: Problem, sigma: float, tau: float) -> float:  # noqa: ARG003
        """Return theta for these steps."""
        return 1.0

    def condition(self, problem: Problem, constants: Constants, steps: StepSizes) -> Condition | None:  # noqa: ARG002
        """Check whether the method's theorem covers these steps; None if it has no theorem."""
        return None


def norm(x: Tensor) -> float:
    """Return the Euclidean norm."""
    return float(torch.linalg.vector_norm(x))


def change(new: Tensor, old: Tensor, times: float = 1.0) -> float:
    """Return times |new - old|, less its rounding error, so that rounding is not taken for curvature."""
    rounding = 8 * float(torch.finfo(new.dtype).eps) * max(norm(new), norm(old))
    return times * max(norm(new - old) - rounding, 0.0)


def quotient(changed: float, moved: float) -> float:
    """Return changed / moved; 0 if nothing changed."""
    return changed / moved if changed and moved else (inf if changed else 0.0)
