"""Report on the folder of a `sihg solve`: figures, tables and one HTML page."""

from collections.abc import Sequence
from pathlib import Path

from sihg.report.figures.convergence import Cost, convergence
from sihg.report.figures.phase_panels import MOST_TOGETHER, trajectory_panels
from sihg.report.figures.phase_plane import trajectories
from sihg.report.figures.style import figure_style, save_figure
from sihg.report.page.html import environment_texts, render
from sihg.report.page.page_figures import DrawnFigure, caption_of, figure_parts
from sihg.report.page.page_tables import page_table, toggles
from sihg.report.page.page_warnings import page_warnings
from sihg.report.read.evaluations import Remark
from sihg.report.read.palette import look
from sihg.report.read.runs import setting_text
from sihg.report.read.solves import MethodRun, Solved, read_solved
from sihg.report.tables.compact import best_cells
from sihg.report.tables.latex import as_latex
from sihg.report.tables.table import Cell, Column, Table, as_csv, as_markdown, cell_text, count
from sihg.store.files import write_text
from sihg.store.sums import refresh_sums

RESULTS = (
    *("method", "saddle_norm_squared", "mean_saddle_norm_squared", "guarantee", "distance"),
    *("iterations", "w_gradients", "delta_gradients", "seconds"),
)
COMPACT = ("method", "saddle_norm_squared", "mean_saddle_norm_squared", "distance", "w_gradients", "delta_gradients")
FIGURES: dict[str, Cost] = {"convergence": "iteration", "cost": "gradients"}
STEPS = ("method", "sigma", "tau", "theta", "source", "stopped")
MAY_DIVERGE = ("saddle_norm_squared", "mean_saddle_norm_squared")


def report_solve(folder: Path) -> list[Path]:
    """Write figures, tables and index.html into the folder of a `sihg solve --out`; return their paths."""
    folder = Path(folder)
    solved = read_solved(folder)
    with refresh_sums(folder):
        return _write(folder, solved)


def _write(folder: Path, solved: Solved) -> list[Path]:
    with figure_style():
        drawn = {name: convergence(solved, cost) for name, cost in FIGURES.items()}
        if solved.field is not None:
            draw = trajectories if len(solved.methods) <= MOST_TOGETHER else trajectory_panels
            drawn["trajectories"] = draw(solved, solved.field)
        figures = [
            DrawnFigure(svg, png, *caption_of(name))
            for name, figure in drawn.items()
            for svg, png in [save_figure(figure, folder, name)]
        ]
    table = solve_table(solved)
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        write_text(folder / "table.csv", as_csv(table)),
        write_text(folder / "table.md", as_markdown(table)),
        write_text(folder / "table.tex", _latex(table)),
        write_text(folder / "index.html", _page(solved, table, figures)),
    ]


def solve_table(solved: Solved) -> Table:
    """Make a row per method; the column of Theorem 1's bound only if a method has one."""
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
    table = Table(columns, [[_cell(run, column.key) for column in columns] for run in solved.methods])
    if all(run.guarantee is None for run in solved.methods):
        return table.part(*(column.key for column in columns if column.key != "guarantee"))
    return table


def _cell(run: MethodRun, key: str) -> Cell:
    if key == "mean_saddle_norm_squared":
        return run.mean
    cell: Cell = getattr(run if key == "guarantee" else run.row, key)
    return cell


def _page(solved: Solved, table: Table, figures: Sequence[DrawnFigure]) -> str:
    summary = solved.summary
    colours = [look(run.row.method).colour for run in solved.methods]
    methods = [run.row.method for run in solved.methods]
    results, steps = table.part(*RESULTS), table.part(*STEPS)
    return render(
        "solve.html",
        title=summary.problem,
        kicker="sihg solve",
        about=summary.about,
        facts=[
            count(summary.n, "block", "blocks"),
            count(summary.dimension_w, "number in w", "numbers in w"),
            count(summary.dimension_delta, "number in δ", "numbers in δ"),
            count(summary.iterations, "iteration planned", "iterations planned"),
            f"seed {summary.seed}",
        ],
        warnings=page_warnings([(run.row.method, Remark(text)) for run in solved.methods for text in run.row.warnings]),
        toggles=toggles(methods, colours),
        results=page_table(results, "What every method reached, and what it cost", colours, _texts(results), methods),
        figures=figure_parts(figures, "solve"),
        latex=_latex(table),
        steps=page_table(steps, "Step sizes, their source, and why they stopped", colours, _texts(steps), methods),
        options={name: setting_text(value) for name, value in summary.options.items()},
        environment=environment_texts([summary.environment]),
        command=summary.command,
    )


def _latex(table: Table) -> str:
    """Write a compact table, with the smallest norms and distances in bold."""
    part = table.part(*COMPACT)
    return as_latex(_texts(part), best_cells(part, lowest=range(1, 4)))


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
