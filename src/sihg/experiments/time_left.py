"""Estimate how far a grid is and how long it still takes, corrected by the time that its cells really took."""

import time
from collections.abc import Callable, Mapping, Sequence

PRIOR_SECONDS = 20.0  # of work, after which the measured speed counts as much as the estimate


class TimeLeft:
    """Progress over cells; `costs` are the estimated seconds of each cell's phases, in order."""

    def __init__(
        self, costs: Mapping[str, Mapping[str, float]], jobs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.costs, self.jobs, self.clock = costs, jobs, clock
        self.done = dict.fromkeys(costs, 0.0)  # estimated seconds of the work that is done
        self.worked = 0.0  # estimated seconds of the work done since this object exists
        self.spent = 0.0  # real seconds of cells that have ended
        self.started: dict[str, float] = {}

    def start(self, cell: str) -> None:
        """Note that a cell starts or is resumed."""
        self.started[cell] = self.clock()

    def advance(self, cell: str, phase: str, done: int, total: int) -> None:
        """Note how far a phase is; the phases before it are done. Unknown phases do not count."""
        phases = self.costs[cell]
        if phase not in phases:
            return
        names = list(phases)
        before = sum(phases[name] for name in names[: names.index(phase)])
        reached = before + phases[phase] * (done / total if total else 1.0)
        is_new = self.done[cell] or phases[phase] == 0 or done <= 1  # otherwise an earlier process did a part
        self.worked += max(0.0, reached - self.done[cell]) if is_new else 0.0
        self.done[cell] = max(self.done[cell], reached)

    def end(self, cell: str) -> None:
        """Note that a cell has ended, well or not: nothing is left of it."""
        self.spent += self.clock() - self.started.pop(cell)
        whole = sum(self.costs[cell].values())
        self.worked += whole - self.done[cell]
        self.done[cell] = whole

    @property
    def share(self) -> float:
        """The share of the whole grid that is done."""
        whole = sum(sum(phases.values()) for phases in self.costs.values())
        return sum(self.done.values()) / whole if whole else 1.0

    def share_of(self, cell: str) -> float:
        """Return the share of a cell that is done."""
        whole = sum(self.costs[cell].values())
        return self.done[cell] / whole if whole else 1.0

    def seconds(self) -> float:
        """Return the seconds until the grid is done."""
        remaining = [sum(phases.values()) - self.done[cell] for cell, phases in self.costs.items()]
        now = self.clock()
        spent = self.spent + sum(now - start for start in self.started.values())
        slowdown = (spent + PRIOR_SECONDS) / (self.worked + PRIOR_SECONDS)
        return slowdown * schedule_length(remaining, self.jobs)


def schedule_length(seconds: Sequence[float], jobs: int) -> float:
    """Return how long tasks of these durations take, `jobs` at a time, started in this order.

    >>> schedule_length([5, 1, 1, 1], 2)
    5.0
    """
    busy_until = [0.0] * jobs
    for duration in seconds:
        busy_until[busy_until.index(min(busy_until))] += duration
    return max(busy_until)
