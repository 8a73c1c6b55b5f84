"""What a callback receives after each iteration of a solve."""

from collections.abc import Callable
from dataclasses import dataclass

from sihg.minimax._layout import Blocks, Weights
from sihg.minimax.history import History
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers.base import State


@dataclass(frozen=True)
class Progress:
    """What a callback receives after an iteration.

    Args:
        problem: The problem.
        at: The state of the solve. The next iteration may overwrite its delta; `resume()` returns a copy to keep.
        history: All rows so far.
        row: The row of this iteration; None if it was not recorded.
    Example:
        >>> from sihg.minimax import solve, zoo
        >>> solve(zoo.get("ridge").problem, iterations=9, callback=lambda progress: progress.iteration == 3).stopped
        'stopped by the callback at iteration 3'
    """

    problem: Problem
    at: SolveState
    history: History
    row: dict[str, float] | None

    @property
    def iteration(self) -> int:
        """The number of iterations done."""
        return self.at.iteration

    @property
    def state(self) -> State:
        """The state of the method: flat w and delta, and what its next step needs."""
        return self.at.inner

    def resume(self) -> SolveState:
        """Return a copy of the state, from which `solve` can continue."""
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
