"""Draw a table of methods and problems, coloured by how each method did."""

from math import inf, isfinite, log2

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sihg.report.figures.style import FAINT, INK, QUIET, fit_name
from sihg.store.profile_records import ProfileCell, SolverProfile

CELL_WIDTH, CELL_HEIGHT = 0.5, 0.24  # inches
LEFT, BOTTOM, RIGHT, TOP = 2.0, 0.55, 0.75, 1.6
COLOUR, FADED_AT = "#0072b2", 32.0  # the factor at which a cell is nearly white


def cost_matrix(found: SolverProfile) -> Figure:
    """Draw a row per method, best first, and a column per problem.

    From the problems' own starts a cell has the cost over the best of its column; from random starts the share of
    starts from which the method solved it.
    """
    methods = sorted(found.methods, key=lambda m: [-found.share(m, inf), -found.share(m, 2.0)])
    rows, columns = len(methods), len(found.problems)
    width = max(LEFT + columns * CELL_WIDTH + RIGHT, 4.5)
    height = BOTTOM + rows * CELL_HEIGHT + TOP
    figure = Figure(figsize=(width, height))
    box = (LEFT / width, BOTTOM / height, columns * CELL_WIDTH / width, rows * CELL_HEIGHT / height)
    axes = figure.add_axes(box, xlim=(0, columns), ylim=(rows, 0))
    for x, problem in enumerate(found.problems):
        costs = {method: _cost(found.cell(problem.name, method)) for method in methods}
        best = min(costs.values())
        for y, method in enumerate(methods):
            shade, text = _look(found.cell(problem.name, method), costs[method], best, found.settings.starts)
            axes.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=COLOUR, alpha=shade, linewidth=0))
            ink = "white" if shade > 0.65 else INK if shade else QUIET
            axes.text(x + 0.5, y + 0.52, text, ha="center", va="center", fontsize=7, color=ink)
    axes.set_yticks([y + 0.5 for y in range(rows)], [fit_name(method, 26) for method in methods], fontsize=8)
    labels = [f"{fit_name(problem.name, 24)} ({problem.n})" for problem in found.problems]
    axes.set_xticks(
        [x + 0.5 for x in range(columns)], labels, rotation=60, ha="left", rotation_mode="anchor", fontsize=8
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_color(FAINT)
    note = "share of starts that it solves" if found.settings.starts else "cost over the best of the column"
    note = f"{note}; \N{EN DASH} not solved; (n): blocks"
    figure.text(0.1 / width, 0.3 / height, note, fontsize=8, color=QUIET, va="center")
    return figure


def _cost(cell: ProfileCell | None) -> float:
    return cell.median_cost if cell is not None else inf


def _look(cell: ProfileCell | None, cost: float, best: float, starts: int) -> tuple[float, str]:
    """Return how dark a cell is, from 0 to 1, and its text."""
    if cell is None:
        return 0.0, ""
    if not isfinite(cost):
        return 0.0, "\N{EN DASH}"
    if starts:
        return 0.05 + 0.95 * cell.solved, f"{100 * cell.solved:.0f} %"
    ratio = max(cost, 1.0) / max(best, 1.0)
    return max(0.06, 1 - log2(ratio) / log2(FADED_AT)), f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"
