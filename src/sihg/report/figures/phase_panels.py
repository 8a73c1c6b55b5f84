"""Draw the trajectory of each method in a panel of its own, with its limit cycle, for problems in the plane."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from sihg.report.figures.phase_plane import (
    HUGE,
    MOST_ASPECT,
    PALE,
    STAR,
    Window,
    cut_far_points,
    draw_arrows,
    field_window,
    find_exit,
    thin_path,
)
from sihg.report.figures.style import INK, QUIET, fit_name, fit_text
from sihg.report.read.path_cycles import find_limit_cycle
from sihg.report.read.solves import MethodRun, Solved
from sihg.store.schema import SolveField

MOST_TOGETHER = 6  # methods that one panel can show
COLUMNS, ARROWS = 5, 13
SIDE, ACROSS, DOWN = 1.75, 0.16, 0.5  # inches
LEFT, BOTTOM, RIGHT, TOP = 0.6, 0.85, 0.15, 0.8
PATH, CYCLE = "#0072b2", "#d55e00"
CONVERGED = 1e-8  # ||F||^2 at the end over its first value


def trajectory_panels(solved: Solved, field: SolveField) -> Figure:
    """Draw a panel per method, with the same window and the same field."""
    window, count = field_window(field), len(solved.methods)
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    width = LEFT + columns * SIDE + (columns - 1) * ACROSS + RIGHT
    height = BOTTOM + rows * SIDE + (rows - 1) * DOWN + TOP
    figure = Figure(figsize=(width, height))
    for place, run in enumerate(solved.methods):
        row, column = divmod(place, columns)
        left = LEFT + column * (SIDE + ACROSS)
        bottom = BOTTOM + (rows - 1 - row) * (SIDE + DOWN)
        axes = figure.add_axes((left / width, bottom / height, SIDE / width, SIDE / height))
        _panel(axes, run, window, field)
        axes.tick_params(labelleft=column == 0, labelbottom=place + columns >= count, labelsize=8)
    figure.text(LEFT / width, 1 - 0.25 / height, fit_text(solved.summary.problem, 40), fontweight="bold", va="center")
    figure.text(0.5, 0.45 / height, "w", ha="center", va="center")
    figure.text(0.15 / width, 0.5, "δ", ha="center", va="center")
    _legend(figure, height, field)
    return figure


def _panel(axes: Axes, run: MethodRun, window: Window, field: SolveField) -> None:
    axes.set(xlim=window[:2], ylim=window[2:])
    spans = window[1] - window[0], window[3] - window[2]
    if max(spans) <= MOST_ASPECT * min(spans):
        axes.set_aspect("equal", adjustable="box")
    draw_arrows(axes, field, ARROWS)
    if field.box:
        w0, w1, d0, d1 = field.box
        axes.add_patch(Rectangle((w0, d0), w1 - w0, d1 - d0, fill=False, edgecolor=QUIET, linewidth=1, zorder=1.5))
    path = run.path if run.path is not None else np.empty((0, 2))
    cycle = find_limit_cycle(path)
    drawn = cut_far_points(path, window)
    drawn = drawn[thin_path(drawn / list(spans), 0.002)]
    (line,) = axes.plot(*drawn.T, color=PATH, linewidth=0.7, alpha=0.85, zorder=2)
    line.set_rasterized(len(drawn) > HUGE)
    if cycle is not None:
        (round_,) = axes.plot(*cycle.T, color=CYCLE, linewidth=2, zorder=3)
        round_.set_rasterized(len(cycle) > HUGE)
    if len(path):
        axes.plot(*path[:1].T, "o", color="white", markersize=4.5, markeredgecolor=INK, zorder=6)
    finite = path[np.isfinite(path).all(axis=1)]
    left = find_exit(finite, window) if len(finite) else None
    if len(finite) and cycle is None:
        x, y = finite[-1] if left is None else left
        axes.plot(x, y, "X", color=PATH, markersize=4.5, markeredgecolor="white", clip_on=False, zorder=7)
    if field.solution:
        axes.plot(*field.solution, "*", color=STAR, markersize=12, markeredgecolor=INK, markeredgewidth=0.7, zorder=5)
    axes.set_title(fit_name(run.row.method, 24), fontsize=9, color=INK, pad=14, parse_math=False)
    has_left = left is not None or len(finite) < len(path)
    axes.text(0, 1.03, _end(run, cycle, left=has_left), fontsize=7.5, color=QUIET, transform=axes.transAxes)


def _end(run: MethodRun, cycle: "np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None", *, left: bool) -> str:
    """Return how the method ends, in words."""
    if run.row.stopped.startswith("diverged") or (left and cycle is None):
        return "leaves"
    if cycle is not None:
        return f"limit cycle of {len(cycle) - 1} iterations"
    values = run.curve.value
    end = f"‖F‖ = {values[-1] ** 0.5:.1e}" if len(values) else ""
    has_converged = len(values) > 1 and values[-1] <= CONVERGED * values[0]
    return f"converges, {end}" if has_converged else f"not there yet, {end}"


def _legend(figure: Figure, height: float, field: SolveField) -> None:
    handles = [
        Line2D([], [], color="white", linestyle="", marker="o", markeredgecolor=INK, markersize=5, label="start"),
        Line2D([], [], color=PATH, linewidth=1, label="path"),
        Line2D([], [], color=PATH, linestyle="", marker="X", markersize=6, label="end"),
        Line2D([], [], color=CYCLE, linewidth=2, label="limit cycle"),
        Line2D([], [], color=PALE, linestyle="", marker=r"$\rightarrow$", markersize=12, label="field"),
    ]
    if field.solution:
        star = Line2D(
            [], [], color=STAR, linestyle="", marker="*", markeredgecolor=INK, markersize=10, label="solution"
        )
        handles.append(star)
    if field.box:
        handles.append(Line2D([], [], color=QUIET, linewidth=1, label="constraint"))
    figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0.02 / height), ncols=7, frameon=False)
