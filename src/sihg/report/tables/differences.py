"""Differences between entries, with intervals that say how much of them may be chance."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from sihg.report.read.entries import Entry
from sihg.report.read.evaluations import ALL
from sihg.report.tables.table import Cell, Column, Table
from sihg.report.tables.training_tables import PERCENT, TEST
from sihg.store.statistics import Spread, welch

FEW = 6  # entries, of which all pairs are compared

Known = tuple[Entry, Spread]


def contrast_table(headline: Table, owners: Sequence[Entry | None]) -> Table:
    """A row for each attack and pair of entries with several trials each: the later less the earlier, and an interval.

    Entries of other data or another ball are not compared. Where there are more than a few, each is compared with the
    first alone. The headline is that of `entry_table`, and `owners` tells its entries from what the paper reports.
    """
    columns = [
        Column("entry", "entry", is_text=True),
        Column("less", "less", is_text=True),
        Column("attack", "attack", is_text=True),
        Column("difference", f"difference{PERCENT}"),
        Column("low", f"from{PERCENT}"),
        Column("high", f"to{PERCENT}"),
    ]
    rows: list[list[Cell]] = []
    for i, column in enumerate(headline.columns):
        if column.key.startswith(TEST) and column.key != f"{TEST}{ALL}":  # close to the strongest attack
            known = [(owner, cell) for owner, cell in _cells(headline, owners, i) if cell.deviation is not None]
            for (one, ours), (other, theirs) in combinations(known, 2) if len(known) <= FEW else _with_first(known):
                if _threat(one) == _threat(other):
                    rows.append([other.name, one.name, column.key.removeprefix(TEST), *welch(theirs, ours)])
    return Table(columns, rows)


def _cells(headline: Table, owners: Sequence[Entry | None], i: int) -> Iterator[tuple[Entry, Spread]]:
    """What the entries reached in a column."""
    for row, owner in zip(headline.rows, owners, strict=True):
        if owner and isinstance(cell := row[i], Spread):
            yield owner, cell


def _with_first(known: Sequence[Known]) -> list[tuple[Known, Known]]:
    return [(known[0], other) for other in known[1:]]


def _threat(entry: Entry) -> list[Any]:
    """What has to be the same for accuracies to be comparable."""
    return [entry.settings.get(key) for key in ("data", "eps", "norm", "bounds")]
