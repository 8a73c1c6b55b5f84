"""Sums over the steps of an epoch, one tally for each lane; lanes are added in their order."""

import math
from collections.abc import Sequence

from sihg.errors import InputError
from sihg.robust.methods.base import Log
from sihg.store.schema import Tally

MIN_ROWS = 8  # of a lane, for its predictions to be called constant: one row always is


def add_log(tally: Tally, log: Log, columns: Sequence[str]) -> None:
    """Add a step to the sums, also of the columns that the method adds.

    Raises:
        InputError: A column is missing, NaN or infinite.
    """
    samples = log.samples
    tally.samples += samples
    tally.passes += log.passes
    tally.loss += log.loss * samples
    tally.hits += log.accuracy * samples
    tally.moved = _add(tally.moved, log.moved, samples)
    tally.saturated = _add(tally.saturated, log.saturated, samples)
    if samples >= MIN_ROWS:
        tally.judged += samples
        tally.constant += int(log.predicted.max())
    for name in columns:
        value = log.extra.get(name, math.nan)
        if not math.isfinite(value):
            raise InputError("method-column", name=name, value=log.extra.get(name))
        tally.extra[name] = tally.extra.get(name, 0.0) + value * samples


def add_tallies(a: Tally, b: Tally) -> Tally:
    """Return the sums over two lanes.

    >>> add_tallies(Tally(samples=2, loss=1.0), Tally(samples=1, loss=0.5, moved=0.25))
    Tally(samples=3, passes=0.0, loss=1.5, hits=0.0, moved=0.25, saturated=None, judged=0, constant=0.0, extra={})
    """
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in Tally.__struct_fields__ if name != "extra"}
    sums = {name: x if y is None else y if x is None else x + y for name, (x, y) in pairs.items()}
    names = a.extra | b.extra
    return Tally(**sums, extra={name: a.extra.get(name, 0.0) + b.extra.get(name, 0.0) for name in names})


def _add(total: float | None, mean: float | None, samples: int) -> float | None:
    return total if mean is None else (total or 0.0) + mean * samples
