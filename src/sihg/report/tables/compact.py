"""Make the compact tables of results: few columns, robust accuracy first, and which cells are the best."""

from collections.abc import Collection, Sequence

from sihg.report.tables.latex import as_latex
from sihg.report.tables.table import NO_BREAK, PERCENT, Cell, Table, for_reading
from sihg.report.tables.training_tables import CLEAN, TEST
from sihg.store.statistics import Spread, spread_text

ABOUT = ("method", "data", "model", "norm", "eps")
COSTS = ("passes", "seconds", "trials", "epochs", "epochs_asked", "samples")


def results_first(table: Table, hidden: Collection[str] = ()) -> Table:
    """Order the columns: the entry, robust accuracy (the strongest attack first), clean accuracy, settings, costs.

    `all` is left out where it is the same as one attack in every row; columns named in `hidden` are left out. A table
    without results on test samples keeps its order.
    """
    cells = {column.key: [row[i] for row in table.rows] for i, column in enumerate(table.columns)}
    keys = [key for key in cells if key not in hidden]
    tests = [key for key in keys if key.startswith(TEST)]
    if not tests:
        return table.part(*keys)
    clean = [key for key in tests if key.startswith(f"{TEST}{CLEAN}")]
    robust = [key for key in tests if key not in clean][::-1]
    every = [key for key in robust if key.startswith(f"{TEST}all")]
    doubled = [key for key in every if any(cells[key] == cells[other] for other in robust if other != key)]
    sizes = [column.key for column in table.columns if column.size_of]
    about, costs = ([key for key in group if key in keys] for group in (ABOUT, COSTS))
    return table.part("entry", *(key for key in robust if key not in doubled), *clean, *sizes, *about, *costs)


def results_latex(table: Table, is_ours: Sequence[bool]) -> str:
    """Write results in LaTeX: accuracy to a tenth of a percent, the best of ours in bold; of the costs only passes."""
    kept = results_first(table, COSTS[1:])
    kept = kept.part(*(column.key for column in kept.columns if not column.size_of))
    shown = for_reading(kept)
    accuracies = [i for i, column in enumerate(kept.columns) if column.heading.endswith(PERCENT)]
    rows: list[list[Cell]] = [
        [_tenths(row[i]) if i in accuracies else text for i, text in enumerate(texts)]
        for row, texts in zip(kept.rows, shown.rows, strict=True)
    ]
    return as_latex(Table(shown.columns, rows), best_cells(kept, highest=accuracies, counted=is_ours))


def best_cells(
    table: Table, *, highest: Sequence[int] = (), lowest: Sequence[int] = (), counted: Sequence[bool] | None = None
) -> set[tuple[int, int]]:
    """Return the row and column of the best number of each column, ties included; none in a table with one row."""
    rows = [i for i in range(len(table.rows)) if counted is None or counted[i]]
    found: set[tuple[int, int]] = set()
    for columns, choose in ((highest, max), (lowest, min)):
        for j in columns:
            values = {i: value for i in rows if (value := _number(table.rows[i][j])) is not None}
            if len(values) > 1:
                best = choose(values.values())
                found |= {(i, j) for i, value in values.items() if value == best}
    return found


def _number(cell: Cell) -> float | None:
    if isinstance(cell, Spread):
        return cell.mean
    return float(cell) if isinstance(cell, int | float) else None


def _tenths(cell: Cell) -> str:
    if isinstance(cell, Spread):
        return spread_text(cell._replace(of=None), lambda share: f"{100 * share:.1f}").replace(
            f"{NO_BREAK}-{NO_BREAK}", "\N{EN DASH}"
        )
    return cell if isinstance(cell, str) else "—" if cell is None else f"{100 * cell:.1f}"
