"""What a callback sees of a solve under way."""

from collections.abc import Callable
from dataclasses import dataclass

from sihg.minimax.history import History
from sihg.minimax.layout import Blocks, Weights
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers.base import State


@dataclass(frozen=True)
class Progress:
    """What a callback sees after an iteration; `row` is the recorded row, or None where nothing was recorded.

    `history` has all rows so far. `at` is the solve's state, whose delta the next iteration may overwrite; `resume()`
    gives a copy to keep or to save.
    """

    problem: Problem
    at: SolveState
    history: History
    row: dict[str, float] | None

    @property
    def iteration(self) -> int:
        """The iterations done."""
        return self.at.iteration

    @property
    def state(self) -> State:
        """The method's state: flat w and delta, and what the next step needs."""
        return self.at.inner

    def resume(self) -> SolveState:
        """A state from which the solve can go on."""
        return self.at.copied()

    @property
    def w(self) -> Weights:
        """The iterate w in the user's form (a view: copy it to keep it)."""
        return self.problem.w_form(self.state.w)

    @property
    def delta(self) -> Blocks:
        """The iterate delta in the user's form (a view: copy it to keep it)."""
        return self.problem.delta_form(self.state.delta)


Callback = Callable[[Progress], object]
