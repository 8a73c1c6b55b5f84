"""The records of a performance profile: which method solved which problem at which cost. Needs no torch."""

from collections.abc import Sequence
from math import inf
from statistics import median
from typing import Literal

import msgspec

from sihg.store.schema import Environment, Record

Outcome = Literal["solved", "budget spent", "gave up", "cannot solve it"]  # "gave up": it diverged or stalled


class ProfileSettings(Record, frozen=True, kw_only=True):
    """What all cells of a profile have in common; DIR/settings.json.

    A problem is solved once ||F|| <= max(tolerance, reduction times ||F|| at the start).
    """

    passes: int  # budget: a pass is n block gradients in w and n in delta
    reduction: float
    tolerance: float
    starts: int  # random starts; 0: the problem's own start
    seed: int
    dtype: str = ""


class ProfileRun(msgspec.Struct, frozen=True, kw_only=True):
    """One method from one start of a problem."""

    start: int
    outcome: Outcome
    cost: int | None  # block gradients, in w and delta together, when the problem was found solved
    spent: int  # block gradients in all
    iterations: int
    start_norm: float  # ||F|| at the start
    end_norm: float | None  # ||F|| at the last check; None if it is not finite
    distance: float | None = None  # to the known solution, at the end
    reason: str = ""


class ProfileCell(Record, frozen=True, kw_only=True):
    """One method on one problem; DIR/cells/PROBLEM/METHOD.json."""

    problem: str
    method: str
    budget: int  # block gradients per start
    settings: str  # identifies what it was made with
    source: str = ""  # of the step sizes, at the first start
    runs: tuple[ProfileRun, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def solved(self) -> float:
        """The share of starts from which the problem was solved."""
        return sum(run.cost is not None for run in self.runs) / len(self.runs) if self.runs else 0.0

    @property
    def median_cost(self) -> float:
        """The median cost over the starts from which it was solved; infinite if there are none."""
        costs = [run.cost for run in self.runs if run.cost is not None]
        return float(median(costs)) if costs else inf


class ProfileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a profile."""

    name: str
    about: str
    n: int
    dimension_w: int
    dimension_delta: int
    budget: int


class SolverProfile(Record, frozen=True, kw_only=True):
    """A whole profile; DIR/profile.json.

    A task is a problem from one of its starts. The ratio of a method on a task is its cost divided by the smallest cost
    of all methods on that task (Dolan and More 2002), infinite if the method did not solve it.
    """

    settings: ProfileSettings
    problems: tuple[ProfileProblem, ...]
    methods: tuple[str, ...]
    cells: tuple[ProfileCell, ...]
    command: str
    environment: Environment

    @property
    def progress(self) -> str:
        """Say how many cells are done, and that the others count as failures; empty once all are done."""
        planned = len(self.problems) * len(self.methods)
        if len(self.cells) >= planned:
            return ""
        return (
            f"{len(self.cells)} of {planned} cells are done, the others count as not solved: the same command continues"
        )

    def cell(self, problem: str, method: str) -> ProfileCell | None:
        """Return the cell of a method on a problem; None if it has not been computed."""
        return next((cell for cell in self.cells if (cell.problem, cell.method) == (problem, method)), None)

    def ratios(self, method: str, problems: Sequence[str] | None = None) -> list[float]:
        """Return the ratio of a method on every task, or on those of some problems."""
        found = []
        for problem in self.problems:
            if problems is not None and problem.name not in problems:
                continue
            mine = self._costs(problem.name, method)
            best = [min(costs) for costs in zip(*(self._costs(problem.name, m) for m in self.methods), strict=True)]
            found += [cost / least if cost < inf else inf for cost, least in zip(mine, best, strict=True)]
        return found

    def share(self, method: str, factor: float, problems: Sequence[str] | None = None) -> float:
        """Return the share of tasks that a method solves at most at `factor` times the least cost of all methods.

        Tasks that no method solves count as failures of all.
        """
        ratios = self.ratios(method, problems)
        return sum(ratio <= factor and ratio < inf for ratio in ratios) / len(ratios) if ratios else 0.0

    def _costs(self, problem: str, method: str) -> list[float]:
        """Return the cost from each start, infinite where it was not solved or not tried."""
        costs = [inf] * max(1, self.settings.starts)
        cell = self.cell(problem, method)
        for place, run in enumerate(cell.runs if cell else ()):
            # A start that already is a solution costs nothing; ratios need a positive number.
            costs[place] = inf if run.cost is None else float(max(1, run.cost))
        return costs
