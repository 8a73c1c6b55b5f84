"""Summarise several trials: mean, deviation or range, intervals, and messages grouped."""

import re
from collections.abc import Callable, Iterable
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

LEVEL = 0.95  # of the intervals
Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution
MIN_TRIALS = 3  # of a deviation: two values say next to nothing about their spread


class Spread(NamedTuple):
    """The mean over trials, and how far they lie apart.

    Args:
        mean: The mean.
        deviation: The sample standard deviation (n - 1); None for fewer than three trials, or if it is 0 or unknown.
        n: The number of trials with a value; None where it is unknown.
        of: The number of all trials, if it is larger than n.
        low: The lowest value; None for a single trial, or where it is unknown.
        high: The highest value, likewise.
    Example:
        >>> spread([0.25, 0.75, None])
        Spread(mean=0.5, deviation=None, n=2, of=3, low=0.25, high=0.75)
        >>> spread([0.25, 0.5, 0.75]).deviation
        0.25
    """

    mean: float
    deviation: float | None
    n: int | None
    of: int | None = None
    low: float | None = None
    high: float | None = None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the mean of the known values, their deviation and their range; None if no value is known."""
    every = list(values)
    known = [value for value in every if value is not None]
    if not known:
        return None
    n, low, high = len(known), min(known), max(known)
    deviation = stdev(known) if n >= MIN_TRIALS and low < high else None
    ends = (low, high) if n > 1 else (None, None)
    return Spread(fmean(known), deviation, n, None if n == len(every) else len(every), *ends)


def describe_spreads(trials: Iterable[int | None]) -> str:
    """Say what a table shows of entries with so many trials each.

    Example:
        >>> describe_spreads([2, 1]), describe_spreads([5])
        ('mean (lowest - highest)', 'mean ± deviation')
    """
    known = {n for n in trials if n is not None}
    if max(known, default=0) < MIN_TRIALS:
        return "mean (lowest - highest)" if 2 in known else "mean"
    return "mean ± deviation (of two: lowest - highest)" if 2 in known else "mean ± deviation"


def spread_text(found: Spread, write: Callable[[float], str]) -> str:
    """Return the mean with its deviation, the range of two trials, and how many have a value if some have not.

    Example:
        >>> spread_text(Spread(0.5, None, 2, 3, 0.25, 0.75), str)
        '0.5 (0.25\\xa0-\\xa00.75; 2\\xa0of\\xa03)'
    """
    space = "\N{NO-BREAK SPACE}"
    text = write(found.mean)
    if found.deviation is not None:
        text += f"{space}±{space}{write(found.deviation)}"
    notes = []
    if found.n == 2 and found.low is not None and found.high is not None and found.low < found.high:
        notes.append(f"{write(found.low)} - {write(found.high)}".replace(" ", space))
    if found.of is not None:
        notes.append(f"{found.n} of {found.of}".replace(" ", space))
    return f"{text} ({'; '.join(notes)})" if notes else text  # may wrap before the bracket


def welch(one: Spread, other: Spread) -> tuple[float, float, float]:
    """Return one - other and its 95 % interval by Welch's t, which assumes no equal deviations.

    Both need a deviation.

    Example:
        >>> difference, low, high = welch(Spread(0.5, 0.125, 3), Spread(0.25, 0.125, 3))
        >>> f"{difference} from {low:.3f} to {high:.3f}"
        '0.25 from -0.033 to 0.533'
    """
    from scipy.special import stdtrit  # takes longer to import than everything else here

    assert one.deviation
    assert other.deviation
    assert one.n
    assert other.n
    a, b = one.deviation**2 / one.n, other.deviation**2 / other.n
    difference = one.mean - other.mean
    freedom = (a + b) ** 2 / (a**2 / (one.n - 1) + b**2 / (other.n - 1))
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * sqrt(a + b)
    return difference, difference - half, difference + half


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of the share hits / n."""
    share, z2 = hits / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def group_similar(messages: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Group messages, given as (owner, text), whose texts differ only in numbers.

    Returns:
        A mapping from owner to text for each group, in order of appearance. An owner is in a group once: its second
        similar message goes into the next group.
    Example:
        >>> group_similar([("a", "31 % lost"), ("b", "30 % lost"), ("b", "slow")])
        [{'a': '31 % lost', 'b': '30 % lost'}, {'b': 'slow'}]
    """
    groups: dict[tuple[str, int], dict[str, str]] = {}
    for owner, text in messages:
        words = re.sub(r"[0-9.]+", "", text)
        repeats = sum(words == others and owner in group for (others, _), group in groups.items())
        groups.setdefault((words, repeats), {})[owner] = text
    return list(groups.values())
