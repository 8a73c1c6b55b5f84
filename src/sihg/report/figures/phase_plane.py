"""Draw trajectories over the descent-ascent field, for problems with one number in w and one in delta."""

from collections.abc import Sequence
from math import isnan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from sihg.report.figures.interactive import mark_entry
from sihg.report.figures.style import INK, QUIET, fit_text, show_plain_text
from sihg.report.read.evaluations import Floats
from sihg.report.read.palette import look
from sihg.report.read.path_cycles import find_limit_cycle
from sihg.report.read.solves import MethodRun, Solved
from sihg.store.schema import SolveField

Window = tuple[float, float, float, float]  # w from, w to, delta from, delta to
LEFT, BOTTOM, RIGHT, TOP, SIDE, LINE = 0.68, 0.65, 0.2, 0.4, 4.2, 0.22  # inches
COLUMNS = 3  # of the legend
ARROWS = 25  # per side
LONG, HUGE = 500, 5000  # points: lines get finer; lines become pixels even in the SVG
STAR, PALE = "#f0e442", "#c4ccd4"
MOST_ASPECT = 3.0  # longer windows are not drawn to scale


def trajectories(solved: Solved, field: SolveField) -> Figure:
    """Draw the path of every method over the direction of plain descent-ascent."""
    entries = len(solved.methods) + 2 + (field.solution is not None) + (field.box is not None)
    under = BOTTOM + LINE * -(-entries // COLUMNS)
    width, height = LEFT + SIDE + RIGHT, under + SIDE + TOP
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((LEFT / width, under / height, SIDE / width, SIDE / height))
    window = field_window(field)
    axes.set(xlim=window[:2], ylim=window[2:], xlabel="w", ylabel="δ")
    axes.set_title(f"{fit_text(solved.summary.problem, 40)}: trajectories", parse_math=False)
    spans = window[1] - window[0], window[3] - window[2]
    if max(spans) <= MOST_ASPECT * min(spans):
        axes.set_aspect("equal", adjustable="box", anchor="NW")
    draw_arrows(axes, field, ARROWS)
    if field.box:
        w0, w1, d0, d1 = field.box
        axes.add_patch(Rectangle((w0, d0), w1 - w0, d1 - d0, fill=False, edgecolor=QUIET, linewidth=1.2, zorder=1.5))
    handles = [_draw(axes, run, window, order) for order, run in reversed(list(enumerate(solved.methods)))][::-1]
    handles += _marks(axes, solved, field)
    place = (LEFT - 0.1) / width, (under - BOTTOM + 0.15) / height
    legend = figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=place, ncols=COLUMNS, frameon=False, columnspacing=1.2
    )
    show_plain_text(legend)
    return figure


def field_window(field: SolveField) -> Window:
    """Return the limits of the grid plus 4 %, so that the edge of a box is visible."""
    w, delta = 0.04 * np.ptp(field.w), 0.04 * np.ptp(field.delta)
    return field.w[0] - w, field.w[-1] + w, field.delta[0] - delta, field.delta[-1] + delta


def draw_arrows(axes: Axes, field: SolveField, per_side: int) -> None:
    """Draw unit arrows, except where the field is zero or not finite."""
    rows, columns = (slice(None, None, -(-len(grid) // per_side)) for grid in (field.delta, field.w))
    x, y = (np.array(values, dtype=np.float64)[rows, columns] for values in (field.dw, field.ddelta))  # null: NaN
    length = np.hypot(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = x / length, y / length
    seen = np.isfinite(x) & np.isfinite(y)
    at_w, at_delta = np.meshgrid(field.w[columns], field.delta[rows])
    arrows = at_w[seen], at_delta[seen], x[seen], y[seen]
    scale = 1.35 * max(length.shape)
    drawn = axes.quiver(*arrows, angles="xy", pivot="mid", scale=scale, width=0.0028, color=PALE, zorder=1)
    drawn.headwidth, drawn.headlength, drawn.headaxislength = 4, 4.5, 4


def _draw(axes: Axes, run: MethodRun, window: Window, order: int) -> Line2D:
    """Draw a trajectory and its end, or the place where it leaves the window for good; return its legend entry."""
    colour, marker = look(run.row.method)
    name, zorder = fit_text(run.row.method, 13), 4 - order / 100
    path = cut_far_points(run.path, window) if run.path is not None else np.empty((0, 2))
    drawn = path[thin_path(path / [window[1] - window[0], window[3] - window[2]], 0.001)]
    (line,) = axes.plot(*drawn.T, color=colour, alpha=0.85, zorder=zorder)
    line.set(linewidth=1.2 if len(drawn) < LONG else 0.7, rasterized=len(drawn) > HUGE)
    mark_entry(run.row.method, line)
    entry = Line2D([], [], color=colour, linewidth=1.6, marker=marker, markersize=6, label=name)
    cycle = find_limit_cycle(run.path) if run.path is not None else None
    if cycle is not None:
        (ring,) = axes.plot(*cycle.T, color=colour, linewidth=2.4, alpha=0.85, zorder=zorder)
        ring.set_rasterized(len(cycle) > HUGE)
        mark_entry(run.row.method, ring)
        entry.set_label(f"{name}: cycle")
    finite = path[np.isfinite(path).all(axis=1)]
    if not len(finite):
        entry.set_label(f"{name}: no points")
        return entry
    left = find_exit(finite, window)
    if left is not None or np.isnan(path[-1]).any():
        entry.set_label(f"{name}, leaving")
    x, y = finite[-1] if left is None else left
    (end,) = axes.plot(x, y, marker, color=colour, markersize=7.5, markeredgecolor="white", clip_on=False)
    end.set_zorder(zorder + 4)
    mark_entry(run.row.method, end)
    return entry


def _marks(axes: Axes, solved: Solved, field: SolveField) -> list[Line2D]:
    """Mark the starts and the solution; return their legend entries and that of the box."""

    def mark(point: Sequence[float], marker: str, size: float, colour: str, label: str) -> Line2D:
        (line,) = axes.plot(point[:1], point[1:], marker, color=colour, markersize=size, markeredgecolor=INK)
        line.set(label=label, markeredgewidth=1.4 if marker == "o" else 1.0, zorder=9 if marker == "o" else 6)
        return line

    for run in solved.methods:
        if run.path is not None and len(run.path):
            mark(run.path[0].tolist(), "o", 7, "white", "")
    entries = [mark([], "o", 7, "white", "start")]
    if field.solution:
        mark(field.solution, "*", 19, STAR, "")
        entries.append(mark([], "*", 13, STAR, "solution"))
    if field.box:
        entries.append(Line2D([], [], color=QUIET, linewidth=1.2, label="constraint"))
    arrow = Line2D([], [], color=PALE, linestyle="", marker=r"$\rightarrow$", markersize=12, label="field")
    return [*entries, arrow]


def thin_path(path: Floats, gap: float) -> NDArray[np.intp]:
    """Choose the points of a path: each at least `gap` from the one before, one per row of NaNs, and the last."""
    kept = [0] if len(path) else []
    points = path.tolist()  # much faster to walk through than an array
    x0, y0 = points[0] if points else (0.0, 0.0)
    for i, (x, y) in enumerate(points):
        if isnan(x + y) != isnan(x0 + y0) or abs(x - x0) >= gap or abs(y - y0) >= gap:
            kept.append(i)
            x0, y0 = x, y
    if kept and kept[-1] != len(path) - 1:
        kept.append(len(path) - 1)
    return np.array(kept, dtype=np.intp)


def cut_far_points(path: Floats, window: Window, times: float = 100) -> Floats:
    """Remove points far outside the window; the step that leads there is shortened in its direction."""
    centre = np.array([window[0] + window[1], window[2] + window[3]]) / 2
    far = times * max(window[1] - window[0], window[3] - window[2])
    path = path.copy()
    outside = ~(np.abs(path - centre).max(axis=1) <= far)  # nan too
    for i in np.flatnonzero(outside):
        step = path[i] - path[i - 1] if i and np.isfinite(path[i]).all() else np.full(2, np.nan)
        if i and not outside[i - 1] and np.isfinite(step).all():
            path[i] = path[i - 1] + step * (far / np.abs(step).max())
        else:
            path[i] = np.nan
    return path


def find_exit(path: Floats, window: Window) -> Floats | None:
    """Return where a path leaves the window for the last time; None if it ends inside."""
    low, high = np.array(window[::2]), np.array(window[1::2])
    inside = np.all((path >= low) & (path <= high), axis=1)
    if inside[-1]:
        return None
    if not inside.any():
        return np.asarray(np.clip(path[-1], low, high))
    last = int(np.flatnonzero(inside)[-1])
    here, step = path[last], path[last + 1] - path[last]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(step > 0, (high - here) / step, np.where(step < 0, (low - here) / step, np.inf))
    return np.asarray(here + step * parts.min())
