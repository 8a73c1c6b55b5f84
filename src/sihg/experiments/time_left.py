"""How far a grid is, and how long it will take: the estimated seconds of its cells, corrected by those they took."""

import time
from collections.abc import Callable, Mapping

PRIOR = 20.0  # seconds of work after which what was measured counts as much as the estimate


class Outlook:
    """Cells and their phases, each of so many estimated seconds."""

    def __init__(
        self, costs: Mapping[str, Mapping[str, float]], jobs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.costs, self.jobs, self.clock = costs, jobs, clock
        self.done = dict.fromkeys(costs, 0.0)  # estimated seconds of what is done
        self.worked = 0.0  # of what was done since we look
        self.spent = 0.0  # seconds it took, of cells that have ended
        self.begun: dict[str, float] = {}

    def begin(self, cell: str) -> None:
        """A cell begins, or goes on."""
        self.begun[cell] = self.clock()

    def hear(self, cell: str, phase: str, done: int, of: int) -> None:
        """A phase of a cell is so far; those before it are done."""
        phases = self.costs[cell]
        if phase not in phases:
            return
        names = list(phases)
        before = sum(phases[name] for name in names[: names.index(phase)])
        reached = before + phases[phase] * (done / of if of else 1.0)
        known = self.done[cell] or phases[phase] == 0 or done <= 1  # else an earlier process has done a part
        self.worked += max(0.0, reached - self.done[cell]) if known else 0.0
        self.done[cell] = max(self.done[cell], reached)

    def end(self, cell: str) -> None:
        """A cell has ended, well or not: there is nothing more to do for it."""
        self.spent += self.clock() - self.begun.pop(cell)
        whole = sum(self.costs[cell].values())
        self.worked += whole - self.done[cell]
        self.done[cell] = whole

    @property
    def share(self) -> float:
        """The share of all that is done."""
        whole = sum(sum(phases.values()) for phases in self.costs.values())
        return sum(self.done.values()) / whole if whole else 1.0

    def share_of(self, cell: str) -> float:
        """The share of a cell that is done."""
        whole = sum(self.costs[cell].values())
        return self.done[cell] / whole if whole else 1.0

    def left(self) -> float:
        """The seconds to go, with so many jobs at a time."""
        left = [sum(phases.values()) - self.done[cell] for cell, phases in self.costs.items()]
        now = self.clock()
        spent = self.spent + sum(now - since for since in self.begun.values())
        pace = (spent + PRIOR) / (self.worked + PRIOR)
        return pace * shared(left, self.jobs)


def shared(seconds: list[float], jobs: int) -> float:
    """How long jobs of these seconds take, so many at a time, in this order."""
    free = [0.0] * jobs
    for one in seconds:
        free[free.index(min(free))] += one
    return max(free)
