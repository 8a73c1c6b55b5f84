"""The base of every solver: frozen settings, `init`, and `step` from state to state."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

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


@dataclass(frozen=True)
class Method(ABC, Generic[S]):
    """A solver; its fields are its settings."""

    state: ClassVar[type[State]] = State  # its class; only w and delta are set before the first step
    implicit: ClassVar[bool] = False  # whether it takes implicit steps, so that tau L22 < 1 matters
    bilinear_only: ClassVar[bool] = False
    default_step: ClassVar[tuple[float, str]] = (0.5, "the customary step 1/(2L)")  # times 1/L, and its name

    sigma: float
    tau: float

    @abstractmethod
    def step(self, oracle: Oracle, s: S, i: int) -> S:
        """Do one iteration; i is the drawn block."""

    def measured_at(self, oracle: Oracle, s: S) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the point at which ||F|| is measured."""
        return s.w, s.delta

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
