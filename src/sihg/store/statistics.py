"""Summarise several trials: mean and deviation, differences with their intervals, and their messages grouped."""

import re
from collections.abc import Iterable
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

LEVEL = 0.95  # of the intervals


class Spread(NamedTuple):
    """The mean over trials, and their sample standard deviation (n - 1) where there are at least two.

    Args:
        mean: The mean.
        deviation: The sample standard deviation; None for a single trial, or where it is unknown.
        n: The number of trials with a value; None where it is unknown.
        of: The number of all trials, if it is larger than n.
    Example:
        >>> spread([0.25, 0.75, None])
        Spread(mean=0.5, deviation=0.3535533905932738, n=2, of=3)
    """

    mean: float
    deviation: float | None
    n: int | None
    of: int | None = None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the mean and the sample standard deviation of the known values; None if no value is known."""
    every = list(values)
    known = [value for value in every if value is not None]
    if not known:
        return None
    deviation = stdev(known) if len(known) > 1 else None
    return Spread(fmean(known), deviation, len(known), None if len(known) == len(every) else len(every))


def welch(one: Spread, other: Spread) -> tuple[float, float, float]:
    """Return one - other and its 95 % interval by Welch's t, which assumes no equal deviations.

    Both need at least two trials.

    Example:
        >>> welch(Spread(0.5, 0.0, 2), Spread(0.25, 0.0, 3))
        (0.25, 0.25, 0.25)
    """
    from scipy.special import stdtrit  # takes longer to import than everything else here

    assert one.deviation is not None
    assert other.deviation is not None
    assert one.n
    assert other.n
    a, b = one.deviation**2 / one.n, other.deviation**2 / other.n
    difference = one.mean - other.mean
    if a + b == 0:
        return difference, difference, difference
    freedom = (a + b) ** 2 / (a**2 / (one.n - 1) + b**2 / (other.n - 1))
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * sqrt(a + b)
    return difference, difference - half, difference + half


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
