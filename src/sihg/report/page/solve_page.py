"""The page of a `sihg solve`: what every method reached, how, and with which steps."""

from collections.abc import Sequence
from html import escape

from sihg.report.page.html import (
    Drawn,
    document,
    facts_list,
    figures_grid,
    pairs_list,
    rich_cell,
    rich_table,
    warnings_box,
)
from sihg.report.read.palette import look
from sihg.report.read.solves import Solved
from sihg.report.tables.table import Cell, Column, Table, count

RESULTS = (
    *("method", "iterations", "w_gradients", "delta_gradients", "seconds", "saddle_norm_squared"),
    *("mean_saddle_norm_squared", "guarantee", "distance"),
)
STEPS = ("method", "sigma", "tau", "theta", "source", "stopped")


def page(solved: Solved, made: Table, figures: Sequence[Drawn]) -> str:
    """The page as text."""
    colours = [look(run.method).colour for run in solved.methods]
    facts = [
        count(solved.n, "block", "blocks"),
        count(solved.dimension_w, "number in w", "numbers in w"),
        f"{solved.dimension_delta:,} in δ",
        count(solved.iterations, "iteration asked for", "iterations asked for"),
        f"seed {solved.seed}",
    ]
    parts = [
        facts_list(facts),
        warnings_box((run.method, text) for run in solved.methods for text in run.warnings),
        "<h2>Results</h2>",
        rich_table(made.part(*RESULTS), "What every method reached, and what it cost", colours, _cell),
        figures_grid(figures),
        "<h2>Step sizes and stopping</h2>",
        rich_table(made.part(*STEPS), "The step sizes, where they come from, and why the method stopped", colours),
        '<div class="columns">',
        pairs_list("Options of the problem", solved.options),
        pairs_list("Environment", solved.environment),
        "</div>",
        "<h2>To reproduce</h2>",
        f"<pre><code>{escape(solved.command)}</code></pre>",
    ]
    return document(solved.problem, "sihg solve", solved.about, parts)


def _cell(cell: Cell, column: Column) -> str:
    if cell is None and column.key in ("saddle_norm_squared", "mean_saddle_norm_squared"):
        return "not finite"
    return rich_cell(cell, column)
