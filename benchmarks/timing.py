"""Time callables side by side, and describe what a benchmark reports.

Callables take turns, so other load on the machine slows all of them alike. Results are ratios of paired times.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

MIN_REPETITIONS = 5  # a time limit does not go below this
PROGRESS_SECONDS = 5.0  # a run that takes longer prints a line
PEER_BATCH_SIZES = (64, 256, 1000)  # the best batch size of a peer is one of these


class SkipBenchmark(Exception):  # noqa: N818
    """Raised when a benchmark cannot run here; the message says why."""


class Ratio(NamedTuple):
    """The median, smallest and largest quotient of two measurements over the repetitions."""

    median: float
    smallest: float
    largest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.smallest:.2f}-{self.largest:.2f})"


Value = str | float | Ratio
Row = Mapping[str, Value]


class Measurement(NamedTuple):
    """One run of a callable: wall time and CPU time of its process in seconds, and the value it returned."""

    wall: float
    cpu: float
    value: Any


def time_once(call: Callable[[], Any]) -> Measurement:
    """Run a callable once and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Measurement(wall, cpu, value)


@dataclass(frozen=True)
class Timings:
    """All repetitions of one callable: wall times and CPU times in seconds, and the values it returned."""

    wall: list[float]
    cpu: list[float]
    values: list[Any]

    @property
    def value(self) -> Any:
        """Return the value of the last repetition."""
        return self.values[-1]

    def milliseconds(self, iterations: int) -> float:
        """Return the median wall time of one iteration, if a repetition has `iterations` of them."""
        return 1e3 * median(self.wall) / iterations

    def first(self, repetitions: int) -> "Timings":
        """Return only the first repetitions."""
        return Timings(self.wall[:repetitions], self.cpu[:repetitions], self.values[:repetitions])

    def extended(self, later: "Timings") -> "Timings":
        """Return these repetitions followed by later ones."""
        return Timings(self.wall + later.wall, self.cpu + later.cpu, self.values + later.values)

    def over(self, other: "Timings") -> tuple[Ratio, Ratio]:
        """Divide these times by another callable's, repetition by repetition: wall time, CPU time."""
        return paired_ratio(self.wall, other.wall), paired_ratio(self.cpu, other.cpu)


def time_interleaved(
    calls: Mapping[str, Callable[[], Any]], repetitions: int, seconds: float = math.inf, warmed: bool = False
) -> dict[str, Timings]:
    """Time the callables in turn; each repetition starts with a different one.

    A callable that returns a `Measurement` has timed itself in another process. Unless `warmed` is true, each callable
    first runs once untimed. No repetition starts after `seconds`, except the first MIN_REPETITIONS. Long runs print a
    line when they end.
    """
    timings = {name: Timings([], [], []) for name in calls}
    for call in () if warmed else calls.values():
        call()
    names, begin = list(calls), time.perf_counter()
    for repetition in range(repetitions):
        if repetition >= MIN_REPETITIONS and time.perf_counter() - begin > seconds:
            break
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            measured, before = time_once(calls[name]), timings[name]
            measured = measured.value if isinstance(measured.value, Measurement) else measured
            timings[name] = before.extended(Timings([measured.wall], [measured.cpu], [measured.value]))
            if measured.wall >= PROGRESS_SECONDS:
                print(f"{name}: {measured.wall:.1f} s ({repetition + 1} of {repetitions})", file=sys.stderr, flush=True)
    return timings


@dataclass(frozen=True)
class Part:
    """The part of a long benchmark that is to be run; the rest of its settings stay."""

    only: tuple[str, ...] = ()  # texts that the name of a row must have, all of them; none: every row
    samples: int | None = None
    batch_size: int | None = None  # of the peers, instead of their best one
    peers: tuple[str, ...] = ()  # none: all of them

    def has(self, row: str) -> bool:
        """Return whether a row belongs to the part."""
        return all(text.lower() in row.lower() for text in self.only)

    def describe(self) -> str:
        """Return the flags that ask for this part."""
        sizes = {"--samples": self.samples, "--batch-size": self.batch_size}
        flags = [f"--only {text}" for text in self.only]
        flags += [f"{flag} {size}" for flag, size in sizes.items() if size]
        return " ".join([*flags, *(f"--peer {name}" for name in self.peers)])


WHOLE = Part()


@dataclass(frozen=True)
class Report:
    """The claim of a benchmark, whether it holds in this run, what was run, and tables by title."""

    claim: str
    holds: bool
    about: Mapping[str, Value]
    tables: Mapping[str, Sequence[Row]]


def format_table(rows: Sequence[Row]) -> str:
    """Format rows as a plain table; numbers are aligned to the right."""
    columns = []
    for name, first in rows[0].items():
        cells = [name, *(format_value(row[name]) for row in rows)]
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if isinstance(first, str) else cell.rjust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def format_value(value: Value) -> str:
    """Format a value for a table: four digits of a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Divide two measurements, repetition by repetition."""
    quotients = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return Ratio(median(quotients), min(quotients), max(quotients))
