"""Draw the running average of ||F||^2 and ||F||^2 itself, log-log, over iterations or gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log10
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import LineStyleType
from numpy.typing import NDArray

from sihg.report.figures.interactive import MAX_POINTS, mark_entry, show_values
from sihg.report.figures.style import LINE, LONGEST_NAME, QUIET, CurveName, fit_text, name_curves, number_log_axis
from sihg.report.read.evaluations import Floats
from sihg.report.read.palette import look
from sihg.report.read.solves import MethodRun, Solved

Cost = Literal["iteration", "gradients"]
AXES: dict[Cost, str] = {"iteration": "iterations K", "gradients": "block gradients, in w and δ together"}
SMALLEST = 1e-34  # smaller squared norms are rounding errors
GROWTH = 1e4  # a curve that ends this many times above the start has diverged
PANEL_WIDTH, PANEL_HEIGHT = 3.32, 2.015  # inches; panels are higher if there are more names than fit beside them
LEFT, BOTTOM, RIGHT, TOP, BETWEEN = 0.64, 1.05, 1.24, 0.72, 0.4  # margins in inches
SHORT_NAME, LETTER = 13, 0.075  # letters of a name for which RIGHT has room, and inches per further letter
DASHES = (0, (5, 3))
WITH_RULE = (0, (3, 1))  # of a method with steps of its own rule, such as ssi-hg@adaptive


@dataclass(frozen=True, eq=False)
class Track:
    """A curve of one method in one panel, at positive costs."""

    run: MethodRun
    x: Floats
    y: Floats
    bound: Floats | None = None


def convergence(solved: Solved, cost: Cost) -> Figure:
    """Draw all methods over their cost: above, the average that Theorem 1 bounds; below, the iterates."""
    longest = max(min(len(run.row.method), LONGEST_NAME) for run in solved.methods)
    width = LEFT + PANEL_WIDTH + RIGHT + LETTER * max(0, longest - SHORT_NAME)
    height = max(PANEL_HEIGHT, LINE * (len(solved.methods) + 1))
    whole = BOTTOM + 2 * height + BETWEEN + TOP
    figure = Figure(figsize=(width, whole))
    low, high = _costs(solved.methods, cost)
    used: set[str] = set()
    for title, thick, bottom in (
        ("average of ‖F‖² so far", True, BOTTOM + height + BETWEEN),
        ("‖F‖² at the iterate", False, BOTTOM),
    ):
        box = (LEFT / width, bottom / whole, PANEL_WIDTH / width, height / whole)
        axes = figure.add_axes(box, xscale="log", yscale="log")
        axes.set_xlim(low / 1.1, high * 1.1)
        axes.grid(visible=True)
        axes.set_title(title, fontsize=10, fontweight="normal", pad=7)
        used |= _panel(axes, [_track(run, cost, low, thick) for run in solved.methods], thick)
        for axis, numbered in ((axes.xaxis, not thick), (axes.yaxis, True)):
            number_log_axis(axis, numbered=numbered)
    axes.set_xlabel(AXES[cost])
    name = fit_text(solved.summary.problem, 40)
    figure.text(LEFT / width, 1 - 0.22 / whole, name, fontsize=12, fontweight="bold", va="center", parse_math=False)
    _legend(figure, used)
    return figure


def _costs(runs: Sequence[MethodRun], cost: Cost) -> tuple[float, float]:
    every = _positive(np.concatenate([_cost(run, cost) for run in runs]))
    return (float(every.min()), max(float(every.max()), 2 * float(every.min()))) if every.size else (1.0, 10.0)


def _cost(run: MethodRun, cost: Cost) -> Floats:
    return run.curve.iteration if cost == "iteration" else run.curve.gradients


def _track(run: MethodRun, cost: Cost, left: float, average: bool) -> Track:
    """Select the rows at positive cost; a run that has only its start is put at the left edge."""
    x, curve = _cost(run, cost), run.curve
    kept = x > 0
    if len(x) == 1 and not average:
        x, kept = np.full(1, left), np.ones(1, bool)
    bound = run.row.bound / curve.iteration[kept] if average and run.row.bound and kept.any() else None
    return Track(run, x[kept], (curve.mean if average else curve.value)[kept], bound)


def _panel(axes: Axes, tracks: Sequence[Track], thick: bool) -> set[str]:
    """Draw the curves of a panel; return the signs that the legend must explain."""
    used = {"average" if thick else "value"}
    axes.set_ylim(*_range(tracks, axes.get_xlim()[1] if thick else None))
    for order, track in enumerate(reversed(tracks)):
        place = (len(tracks) - 1 - order + 0.5) / len(tracks)
        _draw(axes, track, place, 2 + order / 100, thick)
        if track.bound is not None and track.bound[-1] < axes.get_ylim()[1]:
            used.add("bound")
    if thick and (slope := _guide(tracks)):
        span = np.array(axes.get_xlim())
        axes.plot(span, slope / span, color=QUIET, linewidth=1, linestyle=DASHES, zorder=1)
        used.add("slope")
    used |= {_end(axes, track) for track in tracks}
    _name_curves(axes, tracks)
    return used


def _name_curves(axes: Axes, tracks: Sequence[Track]) -> None:
    """Name the curves. Curves that leave at the same edge are sorted by the values they go on to."""
    bottom, top = axes.get_ylim()
    names = []
    for track in tracks:
        end = float(track.y[-1]) if len(track.y) else 0.0
        height = log10(min(max(end, bottom), top) / bottom) / log10(top / bottom)
        method = track.run.row.method
        name = CurveName(fit_text(method, LONGEST_NAME), look(method), height, len(track.y) > 0, method)
        names.append((end, name))
    name_curves(axes, [name for _, name in sorted(names, key=lambda pair: (pair[1].height, pair[0]))])


def _range(tracks: Sequence[Track], guided_to: float | None) -> tuple[float, float]:
    """Return the limits of a panel: all values except divergence, rounding and far outliers."""
    starts = _positive(np.concatenate([track.run.curve.value[:1] for track in tracks]))
    start = float(starts.max()) if starts.size else 1.0
    tame = [track for track in tracks if len(track.y) and track.y[-1] <= GROWTH * start]
    every = _positive(np.concatenate([starts, *(track.y for track in tame)]))
    if not every.size:
        return start / 10, start * 10
    highest = min(float(every.max()), GROWTH * start)
    lowest = float(every.min())
    if highest > SMALLEST:
        lowest = max(lowest, SMALLEST)
    if guided_to and (slope := _guide(tracks)):
        lowest = min(lowest, max(slope / guided_to, lowest / 10))
    if any(len(track.y) for track in tracks if track not in tame):
        highest *= 30
    bounds = [float(track.bound[-1]) for track in tracks if track.bound is not None]
    highest = max([highest, *(bound for bound in bounds if bound <= GROWTH * highest)])
    room = max(0.04 * log10(highest / lowest), 0.1)
    return lowest / 10**room, highest * 10**room


def _guide(tracks: Sequence[Track]) -> float | None:
    """Return C such that C / x ends below every curve."""
    return min((float(t.y[-1] * t.x[-1]) / 3 for t in tracks if len(t.y) and 0 < t.y[-1] < inf), default=None)


def _draw(axes: Axes, track: Track, place: float, zorder: float, thick: bool) -> None:
    """Draw the line and a few markers at different positions for each curve, so that equal curves can be told apart."""
    method = track.run.row.method
    colour, marker = look(method)
    kept = thin_curve(track.x, track.y)
    finite = np.where(np.isfinite(track.y), track.y, np.nan)
    style = WITH_RULE if "@" in method else "-"
    (line,) = axes.plot(track.x[kept], finite[kept], color=colour, linestyle=style, zorder=zorder)
    line.set(linewidth=2.2 if thick else 0.9, alpha=None if thick else 0.8)
    mark_entry(method, line)
    _show_values(axes, track, thick)
    if track.bound is not None:
        kept = thin_curve(track.x, track.bound)
        lines = axes.plot(track.x[kept], track.bound[kept], color=colour, linewidth=1.4, linestyle=":", zorder=zorder)
        mark_entry(method, *lines)
    if len(track.x) > 1:
        low, high = axes.get_xlim()
        wanted = low * (high / low) ** ((np.arange(4) + place) / 4)
        rows = np.unique(np.searchsorted(track.x, wanted[(wanted >= track.x[0]) & (wanted <= track.x[-1])]))
        (marks,) = axes.plot(track.x[rows], finite[rows], marker, color=colour, markersize=4.5, zorder=zorder + 1)
        mark_entry(method, marks)


def _show_values(axes: Axes, track: Track, thick: bool) -> None:
    """Show values at costs that are evenly spaced on the logarithmic axis, where the curve is in the panel."""
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    rows = np.flatnonzero((track.y >= bottom) & (track.y <= top))
    if len(rows):
        wanted = np.geomspace(low, high, MAX_POINTS)
        rows = np.unique(rows[np.minimum(np.searchsorted(track.x[rows], wanted), len(rows) - 1)])
    what = "average ‖F‖²" if thick else "‖F‖²"
    method = track.run.row.method
    texts = [f"{method}: {what} = {y:.3g} at {x:,.6g}" for x, y in zip(track.x[rows], track.y[rows], strict=True)]
    show_values(axes, track.x[rows], track.y[rows], texts, method)


def _end(axes: Axes, track: Track) -> str:
    """Mark where a curve ends or leaves the panel for good; return the sign that the legend must explain."""
    if not len(track.x):
        return "nothing"
    (bottom, top), (colour, marker) = axes.get_ylim(), look(track.run.row.method)
    end = float(track.y[-1])
    if bottom <= end <= top:
        (last,) = axes.plot(track.x[-1], end, marker, color=colour, markersize=5, clip_on=False, zorder=5)
        mark_entry(track.run.row.method, last)
        return ""
    outside = track.y > top if end > top else track.y < bottom
    first = 0 if outside.all() else len(outside) - int(np.argmin(outside[::-1]))
    x = _crossing(track, first, top if end > top else bottom)
    place = axes.get_xaxis_transform()
    sign, y = ("^", 1) if end > top else ("v", 0)
    (arrow,) = axes.plot(x, y, sign, color=colour, markersize=6.5, transform=place, clip_on=False, zorder=6)
    mark_entry(track.run.row.method, arrow)
    return "up" if end > top else "down"


def _crossing(track: Track, first: int, edge: float) -> float:
    """Return where the line from the row before `first` meets the edge, on logarithmic axes."""
    x, y = float(track.x[first]), float(track.y[first])
    if first == 0 or not (0 < y < inf and 0 < track.y[first - 1] < inf):
        return x
    x0, y0 = float(track.x[first - 1]), float(track.y[first - 1])
    return float(x0 * (x / x0) ** (log10(edge / y0) / log10(y / y0)))


def _legend(figure: Figure, used: set[str]) -> None:
    def line(label: str, width: float, style: LineStyleType) -> Line2D:
        return Line2D([], [], color=QUIET, linewidth=width, linestyle=style, label=label)

    def mark(label: str, marker: str) -> Line2D:
        return Line2D([], [], color=QUIET, linestyle="", marker=marker, markersize=6, label=label)

    signs = {
        "slope": line("slope \N{MINUS SIGN}1, like 1/K", 1, DASHES),
        "bound": line("bound of Theorem 1", 1.4, ":"),
        "up": mark("continues above", "^"),
        "down": mark("continues below", "v"),
        "nothing": mark("nothing to show", "o"),
    }
    signs["nothing"].set_fillstyle("none")
    handles = [sign for name, sign in signs.items() if name in used]
    width, height = figure.get_size_inches()
    where = (float((LEFT - 0.1) / width), float((BOTTOM - 0.5) / height))
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=where, ncols=2, frameon=False, columnspacing=2)


def thin_curve(x: Floats, y: Floats, columns: int = 500) -> NDArray[np.intp]:
    """Choose the rows of a long curve over a logarithmic axis: the ends and extremes in each of its columns."""
    rows = np.arange(len(x))
    if len(x) <= 4 * columns:
        return rows
    column = np.floor(columns * np.log(x / x[0]) / np.log(x[-1] / x[0]))
    kept: set[int] = set()
    for part in np.split(rows, np.flatnonzero(np.diff(column)) + 1):
        kept |= {part[0], part[np.argmin(y[part])], part[np.argmax(y[part])], part[-1]}
    return np.array(sorted(kept), dtype=np.intp)


def _positive(values: Floats) -> Floats:
    return values[(values > 0) & (values < inf)]
