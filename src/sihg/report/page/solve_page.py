"""Write the page of a `sihg solve`: what every method reached, how, and with which steps."""

from collections.abc import Sequence

from sihg.report.page.html import (
    DrawnFigure,
    environment_texts,
    figure_parts,
    page_table,
    page_warnings,
    render,
)
from sihg.report.read.evaluations import Remark
from sihg.report.read.palette import look
from sihg.report.read.runs import setting_text
from sihg.report.read.solves import Solved
from sihg.report.tables.table import Table, cell_text, count

RESULTS = (
    *("method", "iterations", "w_gradients", "delta_gradients", "seconds", "saddle_norm_squared"),
    *("mean_saddle_norm_squared", "guarantee", "distance"),
)
STEPS = ("method", "sigma", "tau", "theta", "source", "stopped")
MAY_DIVERGE = ("saddle_norm_squared", "mean_saddle_norm_squared")


def solve_page(solved: Solved, table: Table, figures: Sequence[DrawnFigure]) -> str:
    """Return the page as text."""
    summary = solved.summary
    colours = [look(run.row.method).colour for run in solved.methods]
    results, steps = table.part(*RESULTS), table.part(*STEPS)
    return render(
        "solve.html",
        title=summary.problem,
        kicker="sihg solve",
        about=summary.about,
        facts=[
            count(summary.n, "block", "blocks"),
            count(summary.dimension_w, "number in w", "numbers in w"),
            f"{summary.dimension_delta:,} in δ",
            count(summary.iterations, "iteration planned", "iterations planned"),
            f"seed {summary.seed}",
        ],
        warnings=page_warnings((run.row.method, Remark(text)) for run in solved.methods for text in run.row.warnings),
        results=page_table(results, "What every method reached, and what it cost", colours, _texts(results)),
        figure_parts=figure_parts(figures, {"": ("", [], "")}),
        steps=page_table(
            steps, "The step sizes, where they come from, and why the method stopped", colours, _texts(steps)
        ),
        options={name: setting_text(value) for name, value in summary.options.items()},
        environment=environment_texts([summary.environment]),
        command=summary.command,
    )


def _texts(table: Table) -> Table:
    """Write the cells for reading; a missing ||F||^2 was not finite."""
    rows = [
        [
            "not finite" if cell is None and column.key in MAY_DIVERGE else cell_text(cell)
            for cell, column in zip(row, table.columns, strict=True)
        ]
        for row in table.rows
    ]
    return Table(table.columns, rows)
