"""Hold tables, and write them as CSV with every digit, or as Markdown for reading."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from sihg.store.statistics import Spread, spread_text

NO_BREAK = "\N{NO-BREAK SPACE}"
PERCENT = f"{NO_BREAK}%"  # the end of a heading above shares
SPREAD_PARTS = ("deviation", "low", "high")  # that follow a mean in a CSV
FORMULA_STARTS = ("=", "+", "-", "@")  # a spreadsheet runs text that begins with one of these

Cell = str | int | float | Spread | None


class Column(NamedTuple):
    """A column: its key in the CSV, its heading for reading."""

    key: str
    heading: str
    is_text: bool = False
    size_of: str = ""  # the key of a column whose samples it counts; for reading, it is in the cells of that one


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def part(self, *keys: str) -> "Table":
        """Return a table of these columns, in this order; unknown keys are ignored."""
        where = {column.key: i for i, column in enumerate(self.columns)}
        chosen = [where[key] for key in keys if key in where]
        return Table([self.columns[i] for i in chosen], [[row[i] for i in chosen] for row in self.rows])


def split_spreads(table: Table) -> Table:
    """Split each mean into columns: mean, and the deviation, range and number of trials where they are known."""
    columns: list[Column] = []
    rows: list[list[Cell]] = [[] for _ in table.rows]
    for i, column in enumerate(table.columns):
        spreads = [cell if isinstance(cell := row[i], Spread) else None for row in table.rows]
        parts = [part for part in SPREAD_PARTS if any(getattr(found, part, None) is not None for found in spreads)]
        parts += ["n"] if parts else []
        columns += [column, *(Column(f"{column.key}_{part}", part) for part in parts)]
        for row, cells, found in zip(rows, table.rows, spreads, strict=True):
            row += [cells[i] if found is None else found.mean, *(getattr(found, part, None) for part in parts)]
    return Table(columns, rows)


def as_csv(table: Table) -> str:
    """Write every digit; unknown numbers are empty cells. Text that looks like a formula begins with an apostrophe."""
    table, text = split_spreads(table), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_no_formula(column.key) for column in table.columns])
    writer.writerows([_no_formula(cell) for cell in row] for row in table.rows)
    return text.getvalue()


def as_markdown(table: Table) -> str:
    """Write a Markdown table, numbers to three digits."""
    lines = [
        [_markdown(column.heading) for column in table.columns],
        ["---" if column.is_text else "---:" for column in table.columns],
        *([_markdown(cell_text(cell)) for cell in row] for row in table.rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell_text(cell: Cell) -> str:
    """Return a cell as text for reading."""
    if cell is None:
        return "—"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Spread):
        return spread_text(cell, lambda value: f"{value:.3g}")
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.3g}"


def count(number: int, one: str, many: str) -> str:
    """Return a number with its noun, such as "2 runs"."""
    return f"{number:,} {one if number == 1 else many}"


def for_reading(table: Table) -> Table:
    """Write shares as percent, radii as 8/255, costs with few digits; put numbers of samples behind their figures."""
    sizes = {column.size_of: i for i, column in enumerate(table.columns) if column.size_of}
    shown = [i for i, column in enumerate(table.columns) if not column.size_of]
    rows: list[list[Cell]] = []
    for row in table.rows:
        texts = []
        for i in shown:
            text, size = _reading(row[i], table.columns[i]), sizes.get(table.columns[i].key)
            if size is not None and row[i] is not None and row[size] is not None:
                text += f" (n{NO_BREAK}={NO_BREAK}{cell_text(row[size])})"
            texts.append(text)
        rows.append([*texts])
    return Table([table.columns[i] for i in shown], rows)


def radius_text(eps: float) -> str:
    """Return a radius as k/255, unless it is not a multiple of 1/255 or has a short decimal form."""
    k = round(255 * eps)
    if k and abs(255 * eps - k) < 1e-6 and len(f"{eps:.9g}") > 5:
        return f"{k}/255"
    return f"{eps:.6g}"


def _reading(cell: Cell, column: Column) -> str:
    if not isinstance(cell, Spread):
        return _number(cell, column) if isinstance(cell, float) else cell_text(cell)
    if column.heading.endswith("%") or (cell.deviation is None and cell.low == cell.high):
        return spread_text(cell, lambda value: _number(value, column))
    places = 0 if cell.mean >= 100 else 1 if cell.mean >= 10 else 2  # the same for all
    return spread_text(cell, lambda value: f"{value:,.{places}f}")


def _number(value: float, column: Column) -> str:
    if column.heading.endswith("%"):
        return f"{100 * value:.2f}"
    if column.key == "eps":
        return radius_text(value)
    return f"{value:,.0f}" if value >= 100 else cell_text(value)


def _no_formula(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    text = printable_text(cell)  # csv.writer does not quote every line end
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _markdown(text: str) -> str:
    text = printable_text(text)
    for special in "\\`*_|[]$~":
        text = text.replace(special, f"\\{special}")
    return " ".join(escape(text, quote=False).split())


def printable_text(text: str) -> str:
    """Replace control characters, and bytes of file names that are not text, by spaces."""
    return "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else " " for c in text)
