"""Tables: as CSV with every digit, as Markdown and LaTeX for reading; and the table of methods of a solve."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from sihg.report.read.solves import MethodRun, Solved
from sihg.store.statistics import Spread

PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
LATEX = {  # characters that LaTeX reads as its own, or does not know
    **{special: f"\\{special}" for special in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # at the start of a row it would be an argument of the line's end, or of a rule
    "*": "{*}",
    "\N{NO-BREAK SPACE}": "~",
    "±": r"$\pm$",
    "—": "---",
    "ε": r"$\epsilon$",
}


Cell = str | int | float | Spread | None


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


def flat(made: Table) -> Table:
    """The table with each mean, its deviation and the number of trials in columns of their own."""
    columns: list[Column] = []
    rows: list[list[Cell]] = [[] for _ in made.rows]
    for i, column in enumerate(made.columns):
        cells = [row[i] for row in made.rows]
        spread = any(isinstance(cell, Spread) and cell.deviation is not None for cell in cells)
        columns += [column, *(Column(f"{column.key}_{part}", part) for part in ("deviation", "n") if spread)]
        for row, cell in zip(rows, cells, strict=True):
            parts: tuple[Cell, ...] = cell[:3] if isinstance(cell, Spread) else (cell, None, None)
            row += parts if spread else parts[:1]
    return Table(columns, rows)


def as_csv(made: Table) -> str:
    """The table with every digit; empty where a number is not known or not finite."""
    made, text = flat(made), io.StringIO()
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


def as_latex(made: Table) -> str:
    """The table for reading in LaTeX, with the rules of booktabs."""
    lines = [[_latex(column.heading) for column in made.columns]]
    lines += [[_latex(read(cell)) for cell in row] for row in made.rows]
    head, *body = [f"{' & '.join(line)} \\\\\n" for line in lines]
    places = "".join("l" if column.is_text else "r" for column in made.columns)
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{places}}}\n\\toprule\n{head}\\midrule\n"
        f"{''.join(body)}\\bottomrule\n\\end{{tabular}}\n"
    )


def read(cell: Cell) -> str:
    """A cell for reading."""
    if cell is None:
        return "—"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Spread):
        return spread_text(cell, f"{cell.mean:.3g}", "" if cell.deviation is None else f"{cell.deviation:.2g}")
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.3g}"


def count(number: int, one: str, many: str) -> str:
    """So many of a thing, in words."""
    return f"{number:,} {one if number == 1 else many}"


def spread_text(spread: Spread, mean: str, deviation: str) -> str:
    """A mean with its deviation, and of how many trials where some have none."""
    text = mean if spread.deviation is None else f"{mean}{PLUS_MINUS}{deviation}"
    return text if spread.of is None else f"{text} ({spread.n} of {spread.of})"


def _markdown(text: str) -> str:
    for special in "\\`*_|[]$~":
        text = text.replace(special, f"\\{special}")
    return " ".join(escape(text, quote=False).split())


def _latex(text: str) -> str:
    text = "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else " " for c in text)
    return "".join(LATEX.get(c, c) for c in text)
