"""The table of methods: as CSV with every digit, as Markdown for reading."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from sihg.report.records import MethodRun, Solved

Cell = str | int | float | None


class Column(NamedTuple):
    """A column: its key in the CSV, its heading for people."""

    key: str
    heading: str
    is_text: bool = False


@dataclass(frozen=True)
class Table:
    """Columns and their rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def part(self, *keys: str) -> "Table":
        """Only these columns, in this order; those that are not there are left out."""
        where = {column.key: i for i, column in enumerate(self.columns)}
        chosen = [where[key] for key in keys if key in where]
        return Table([self.columns[i] for i in chosen], [[row[i] for i in chosen] for row in self.rows])


def table(solved: Solved) -> Table:
    """All that is known of every method; the columns of Theorem 1's bound only where a method has one."""
    columns = [
        Column("method", "method", is_text=True),
        Column("iterations", "iterations"),
        Column("w_gradients", "block gradients in w"),
        Column("delta_gradients", "block gradients in δ"),
        Column("seconds", "seconds"),
        Column("saddle_norm_squared", "‖F‖² at the end"),
        Column("mean_saddle_norm_squared", "average ‖F‖²"),
        Column("guarantee", "bound on it (Theorem 1)"),
        Column("distance", "distance to the solution"),
        Column("sigma", "σ"),  # noqa: RUF001
        Column("tau", "τ"),
        Column("theta", "θ"),
        Column("source", "step sizes from", is_text=True),
        Column("stopped", "stopped because", is_text=True),
    ]
    made = Table(columns, [_row(run) for run in solved.methods])
    if all(run.guarantee is None for run in solved.methods):
        return made.part(*(column.key for column in columns if column.key != "guarantee"))
    return made


def _row(run: MethodRun) -> list[Cell]:
    return [
        run.method,
        run.iterations,
        run.w_gradients,
        run.delta_gradients,
        run.seconds,
        run.saddle_norm_squared,
        run.mean,
        run.guarantee,
        run.distance,
        run.sigma,
        run.tau,
        run.theta,
        run.source,
        run.stopped,
    ]


def as_csv(made: Table) -> str:
    """The table with every digit; empty where a number is not known or not finite."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.key for column in made.columns])
    writer.writerows(made.rows)
    return text.getvalue()


def as_markdown(made: Table) -> str:
    """The table for reading, numbers to three digits."""
    lines = [
        [_markdown(column.heading) for column in made.columns],
        ["---" if column.is_text else "---:" for column in made.columns],
        *([_markdown(read(cell)) for cell in row] for row in made.rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def read(cell: Cell) -> str:
    """A cell for reading."""
    if cell is None:
        return "—"
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.3g}"


def _markdown(text: str) -> str:
    for special in "\\`*_|[]":
        text = text.replace(special, f"\\{special}")
    return " ".join(escape(text, quote=False).split())
