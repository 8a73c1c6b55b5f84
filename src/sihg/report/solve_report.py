"""`sihg report` on the folder of a `sihg solve`: figures, tables and one HTML page."""

from functools import partial
from pathlib import Path

from sihg.report.figures.convergence import convergence
from sihg.report.figures.phase_plane import trajectories
from sihg.report.figures.style import save
from sihg.report.page.html import Drawn
from sihg.report.page.solve_page import page
from sihg.report.read.solves import read_solved
from sihg.report.tables.table import as_csv, as_markdown, table
from sihg.store.files import write_text

CURVES = (
    "Above, the average of ‖F‖² over all iterations so far, which is what Theorem 1 bounds (in expectation over the "
    "blocks drawn); below, ‖F‖² itself, the squared distance from stationarity, at each recorded iterate. For the "
    "average, ‖F‖² is taken as linear between recorded iterates."
)


def report_solve(folder: Path) -> list[Path]:
    """Write figures, tables and index.html into the folder left by `sihg solve ... --out DIR`; give their paths."""
    folder = Path(folder)
    solved = read_solved(folder)
    drawings = {
        "convergence": (partial(convergence, solved, "iteration"), "Convergence over iterations", CURVES),
        "cost": (
            partial(convergence, solved, "gradients"),
            "Convergence over block gradients",
            "The same over what was paid: gradients of single blocks, in w and in δ together.",
        ),
    }
    if solved.field is not None:
        drawings["trajectories"] = (
            partial(trajectories, solved, solved.field),
            "Trajectories",
            "Where the methods went, over the field (\N{MINUS SIGN}∇φ in w, +∇φ in δ) of plain descent-ascent.",
        )
    figures = []
    for name, (draw, heading, caption) in drawings.items():
        svg, png = save(draw, folder, name)
        figures.append(Drawn(svg, png, heading, caption))
    made = table(solved)
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        write_text(folder / "table.csv", as_csv(made)),
        write_text(folder / "table.md", as_markdown(made)),
        write_text(folder / "index.html", page(solved, made, figures)),
    ]
