"""Report on the folder of a `sihg solve`: figures, tables and one HTML page."""

from pathlib import Path

from sihg.report.figures.convergence import convergence
from sihg.report.figures.phase_plane import trajectories
from sihg.report.figures.style import figure_style, save_figure
from sihg.report.page.html import DrawnFigure
from sihg.report.page.solve_page import solve_page
from sihg.report.read.solves import MethodRun, Solved, read_solved
from sihg.report.tables.table import Cell, Column, Table, as_csv, as_markdown
from sihg.store.files import write_text

CONVERGENCE = (
    "Above: the average of ‖F‖² over all iterations so far, which Theorem 1 bounds (in expectation over the blocks "
    "drawn). Below: ‖F‖² itself, the squared distance from stationarity, at each recorded iterate. For the average, "
    "‖F‖² is taken as linear between recorded iterates."
)
COST = "The same over the cost: gradients of single blocks, in w and δ together."
TRAJECTORIES = "The paths of the methods, over the field (\N{MINUS SIGN}∇φ in w, +∇φ in δ) of plain descent-ascent."


def report_solve(folder: Path) -> list[Path]:
    """Write figures, tables and index.html into the folder of a `sihg solve --out`; return their paths."""
    folder = Path(folder)
    solved = read_solved(folder)
    with figure_style():
        drawings = [
            ("convergence", convergence(solved, "iteration"), "Convergence over iterations", CONVERGENCE),
            ("cost", convergence(solved, "gradients"), "Convergence over block gradients", COST),
        ]
        if solved.field is not None:
            drawings += [("trajectories", trajectories(solved, solved.field), "Trajectories", TRAJECTORIES)]
        figures = [
            DrawnFigure(svg, png, heading, caption)
            for name, figure, heading, caption in drawings
            for svg, png in [save_figure(figure, folder, name)]
        ]
    table = solve_table(solved)
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        write_text(folder / "table.csv", as_csv(table)),
        write_text(folder / "table.md", as_markdown(table)),
        write_text(folder / "index.html", solve_page(solved, table, figures)),
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
