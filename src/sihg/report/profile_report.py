"""Report on a performance profile: figures, tables and one HTML page."""

from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path
from statistics import median

from sihg.report.figures.cost_matrix import cost_matrix
from sihg.report.figures.profile_curves import profile_curves
from sihg.report.figures.style import figure_style, save_figure
from sihg.report.page.html import environment_texts, render
from sihg.report.page.page_figures import DrawnFigure, caption_of, figure_parts
from sihg.report.page.page_tables import page_table
from sihg.report.tables.compact import best_cells
from sihg.report.tables.latex import as_latex
from sihg.report.tables.table import PERCENT, Column, Table, as_csv, as_markdown, count, for_reading
from sihg.store.files import write_text
from sihg.store.profile_records import ProfileCell, SolverProfile
from sihg.store.schema import read_record
from sihg.store.sums import refresh_sums

REMEDY = "repeat the command that made it"
FACTORS = (1.0, 2.0, 10.0)


def report_profile(folder: Path) -> list[Path]:
    """Write figures, tables and index.html into the folder of a profile; return their paths."""
    folder = Path(folder)
    found = read_record(folder / "profile.json", SolverProfile, REMEDY)
    with refresh_sums(folder):
        with figure_style():
            drawn = {"costs": cost_matrix(found)}
            if not found.settings.starts:
                drawn = {"profile": profile_curves(found), **drawn}
            figures = [
                DrawnFigure(svg, png, *caption_of(name))
                for name, figure in drawn.items()
                for svg, png in [save_figure(figure, folder, name)]
            ]
        methods, costs = method_table(found), cost_table(found)
        return [
            *(path for figure in figures for path in (figure.svg, figure.other)),
            write_text(folder / "table.csv", as_csv(methods)),
            write_text(folder / "table.md", as_markdown(for_reading(methods))),
            write_text(folder / "table.tex", _latex(methods)),
            write_text(folder / "costs.csv", as_csv(costs)),
            write_text(folder / "index.html", _page(found, methods, costs, figures)),
        ]


def method_table(found: SolverProfile) -> Table:
    """Make a row per method, best first: the shares of tasks that it solves within some factors of the best cost."""
    columns = [
        Column("method", "method", is_text=True),
        Column("solved", f"solved{PERCENT}"),
        *(Column(f"within_{factor:g}", f"within {factor:g} × best{PERCENT}") for factor in FACTORS),  # noqa: RUF001
        Column("median_cost", "median cost where solved"),
    ]
    rows = []
    for method in sorted(found.methods, key=lambda m: [-found.share(m, 2.0), -found.share(m, inf)]):
        runs = [run for cell in found.cells if cell.method == method for run in cell.runs]
        costs = [run.cost for run in runs if run.cost is not None]
        middle = float(median(costs)) if costs else None
        rows.append([method, *(found.share(method, factor) for factor in (inf, *FACTORS)), middle])
    return Table(columns, rows)


def cost_table(found: SolverProfile) -> Table:
    """Make a row per problem and method: share of starts solved, median cost, outcome and the source of its steps."""
    columns = [
        Column("problem", "problem", is_text=True),
        Column("n", "n"),
        Column("method", "method", is_text=True),
        Column("solved", f"solved{PERCENT}"),
        Column("median_cost", "median cost"),
        Column("outcome", "outcome", is_text=True),
        Column("source", "step sizes from", is_text=True),
    ]
    n = {problem.name: problem.n for problem in found.problems}
    return Table(
        columns,
        [
            [
                cell.problem,
                n[cell.problem],
                cell.method,
                cell.solved,
                cell.median_cost if isfinite(cell.median_cost) else None,
                _outcome(cell),
                cell.source,
            ]
            for cell in found.cells
        ],
    )


def _latex(methods: Table) -> str:
    """Write the shares of the methods, the highest in bold."""
    part = methods.part(*(column.key for column in methods.columns if column.key != "median_cost"))
    return as_latex(for_reading(part), best_cells(part, highest=range(1, len(part.columns))))


def _outcome(cell: ProfileCell) -> str:
    """Name the outcomes, with their counts if there are several starts, and the first reason of a failure."""
    names = list(dict.fromkeys(run.outcome for run in cell.runs))
    counts = {name: sum(run.outcome == name for run in cell.runs) for name in names}
    text = ", ".join(f"{name} {counts[name]} x" if len(cell.runs) > 1 else name for name in names)
    reason = next((run.reason for run in cell.runs if run.outcome in ("gave up", "cannot solve it")), "")
    return f"{text}: {reason}" if reason else text


def _page(found: SolverProfile, methods: Table, costs: Table, figures: Sequence[DrawnFigure]) -> str:
    s = found.settings
    goal = f"‖F‖ ≤ {s.reduction:g} of its value at the start" + (f" or {s.tolerance:g}" if s.tolerance else "")
    about = "From random starts of each problem." if s.starts else "From the start of each problem."
    return render(
        "profile.html",
        title="Performance profile",
        kicker="sihg solve",
        about=f"{about} Solved: {goal}.",
        facts=[
            count(len(found.problems), "problem", "problems"),
            count(len(found.methods), "method", "methods"),
            count(max(1, s.starts), "start", "starts"),
            f"at most {s.passes:,} passes of n block gradients in w and n in δ",
            f"seed {s.seed}",
            *([found.progress] if found.progress else []),
        ],
        results=page_table(methods, "Shares of the tasks", [""] * len(methods.rows)),
        figures=figure_parts(figures, "profile"),
        latex=_latex(methods),
        costs=page_table(costs, "Every method on every problem", [""] * len(costs.rows)),
        environment=environment_texts([found.environment]),
        command=found.command,
    )
