"""Differences between entries, with intervals that say how much of them may be chance."""

from collections.abc import Sequence
from itertools import combinations
from math import sqrt

from scipy.special import stdtrit

from sihg.report.entries import Entry
from sihg.report.table import Cell, Column, Spread, Table
from sihg.report.training_table import PERCENT, TEST

LEVEL = 0.95
FEW = 6  # entries, of which all pairs are compared


def contrast_table(headline: Table, owners: Sequence[Entry | None]) -> Table:
    """A row for each attack and pair of entries with several trials each: the later less the earlier, and an interval.

    Where there are more than a few entries, each is compared with the first alone. The headline is that of
    `entry_table`, and `owners` tells its entries from what the paper reports.
    """
    columns = [
        Column("entry", "entry", is_text=True),
        Column("less", "less", is_text=True),
        Column("attack", "attack", is_text=True),
        Column("difference", f"difference{PERCENT}"),
        Column("low", f"from{PERCENT}"),
        Column("high", f"to{PERCENT}"),
    ]
    ours = [row for row, owner in zip(headline.rows, owners, strict=True) if owner]
    pairs = list(combinations(ours, 2)) if len(ours) <= FEW else [(ours[0], other) for other in ours[1:]]
    rows: list[list[Cell]] = []
    for i, column in enumerate(headline.columns):
        if column.key.startswith(TEST):
            for first, second in pairs:
                one, other = first[i], second[i]
                if isinstance(one, Spread) and isinstance(other, Spread) and (interval := welch(other, one)):
                    rows.append([second[0], first[0], column.key.removeprefix(TEST), *interval])
    return Table(columns, rows)


def welch(one: Spread, other: Spread) -> tuple[float, float, float] | None:
    """one - other with its interval by Welch's t, which takes no deviations for equal; None without deviations."""
    if one.deviation is None or other.deviation is None or one.n is None or other.n is None:
        return None
    a, b = one.deviation**2 / one.n, other.deviation**2 / other.n
    difference = one.mean - other.mean
    if a + b == 0:
        return difference, difference, difference
    freedom = (a + b) ** 2 / (a**2 / (one.n - 1) + b**2 / (other.n - 1))
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * sqrt(a + b)
    return difference, difference - half, difference + half
