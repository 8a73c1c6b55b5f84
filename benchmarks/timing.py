"""Timing side by side, so that whatever else the machine does falls on all alike; and what a benchmark reports."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

FEWEST = 5  # repetitions that a time box leaves
TOLD = 5.0  # seconds, from which on a run is told of
BATCHES = (64, 256, 1000)  # samples, among which each peer has its best


class NotRun(Exception):  # noqa: N818
    """Why a benchmark cannot run here."""


class Ratio(NamedTuple):
    """A quotient of measures: its median, least and largest over the repetitions."""

    median: float
    least: float
    largest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}-{self.largest:.2f})"


Value = str | float | Ratio
Row = Mapping[str, Value]


class Once(NamedTuple):
    """One run of a callable: seconds by the clock and of its process's processors, and what it gave."""

    wall: float
    cpu: float
    value: Any


def once(call: Callable[[], Any]) -> Once:
    """Run and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Once(wall, cpu, value)


@dataclass(frozen=True)
class Timed:
    """The repetitions of one callable: seconds by the clock and of its process's processors, and what it gave."""

    wall: list[float]
    cpu: list[float]
    values: list[Any]

    @property
    def value(self) -> Any:
        """What it last gave."""
        return self.values[-1]

    def milliseconds(self, iterations: int) -> float:
        """The median wall time of one of so many iterations."""
        return 1e3 * median(self.wall) / iterations

    def first(self, repetitions: int) -> "Timed":
        """As if there had been no more repetitions than these."""
        return Timed(self.wall[:repetitions], self.cpu[:repetitions], self.values[:repetitions])

    def and_then(self, later: "Timed") -> "Timed":
        """With further repetitions."""
        return Timed(self.wall + later.wall, self.cpu + later.cpu, self.values + later.values)

    def over(self, other: "Timed") -> tuple[Ratio, Ratio]:
        """This one's time over another's, repetition by repetition: by the clock, and of the processor."""
        return ratio(self.wall, other.wall), ratio(self.cpu, other.cpu)


def interleaved(
    calls: Mapping[str, Callable[[], Any]], repetitions: int, seconds: float = math.inf, warmed: bool = False
) -> dict[str, Timed]:
    """Time the callables in turn, every repetition starting with another one.

    One that gives a `Once` has timed itself, in another process.
    A first run of each is not counted, unless they are `warmed` up. After `seconds` no repetition begins any more, but
    there are FEWEST at least, if so many are asked for. Long runs are told of as they end.
    """
    timed = {name: Timed([], [], []) for name in calls}
    for call in () if warmed else calls.values():
        call()
    names, begin = list(calls), time.perf_counter()
    for repetition in range(repetitions):
        if repetition >= FEWEST and time.perf_counter() - begin > seconds:
            break
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            found, before = once(calls[name]), timed[name]
            found = found.value if isinstance(found.value, Once) else found
            timed[name] = before.and_then(Timed([found.wall], [found.cpu], [found.value]))
            if found.wall >= TOLD:
                print(f"{name}: {found.wall:.1f} s ({repetition + 1} of {repetitions})", file=sys.stderr, flush=True)
    return timed


@dataclass(frozen=True)
class Report:
    """A benchmark's claim, whether this run bears it out, what was run, and tables by title."""

    claim: str
    holds: bool
    about: Mapping[str, Value]
    tables: Mapping[str, Sequence[Row]]


def text(rows: Sequence[Row]) -> str:
    """Rows as a plain table, numbers to the right."""
    columns = []
    for name, first in rows[0].items():
        cells = [name, *(shown(row[name]) for row in rows)]
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if isinstance(first, str) else cell.rjust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def shown(value: Value) -> str:
    """A value as tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """One measure over the other, repetition by repetition."""
    quotients = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(median(quotients), min(quotients), max(quotients))
