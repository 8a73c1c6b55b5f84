"""Draw learning curves: clean and robust accuracy over iterations, gradient passes and seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from matplotlib.typing import LineStyleType

from sihg.report.figures.bands import trial_band
from sihg.report.figures.interactive import mark_entry, show_values
from sihg.report.figures.style import (
    LINE,
    QUIET,
    CurveName,
    fit_name,
    name_curves,
    number_log_axis,
    thousands_formatter,
)
from sihg.report.read.evaluations import Floats
from sihg.report.read.runs import Entry, TrainingRun
from sihg.store.schema import MetricsRow, merit

Cost = Literal["step", "passes", "seconds"]
AXES: dict[Cost, str] = {
    "step": "iterations",
    "passes": "gradient passes per training sample",
    "seconds": "training seconds",
}
FAR = 4  # costs that differ by more than this factor need a logarithmic axis
WIDTH = 5.2
LEFT, BOTTOM, RIGHT, TOP, BETWEEN, PANEL = 0.7, 0.95, 1.5, 0.2, 0.65, 1.75  # inches


class LineKind(NamedTuple):
    """How the accuracies of a column are drawn and named."""

    label: str
    width: float
    style: LineStyleType
    fill: Literal["none", "full"]  # of the marker at its end


KINDS = {
    "natural": LineKind("clean", 1.2, (0, (4, 1.5)), "none"),
    "robust": LineKind("robust", 2.0, "-", "full"),
    "accuracy": LineKind("on the training samples", 1.2, (0, (1, 1.3)), "full"),
}


@dataclass(frozen=True, eq=False)
class Track:
    """One column of metrics.csv of an entry over a cost: the mean over its trials, and a band (NaN for one trial)."""

    kind: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats


def learning_curves(entries: Sequence[Entry], *, best: bool = False) -> Figure:
    """Draw all entries, one panel per cost; with `best`, the best result so far at each evaluation."""
    panel = max(PANEL, LINE * len(entries))
    height = BOTTOM + TOP + (len(AXES) - 1) * BETWEEN + len(AXES) * panel
    figure = Figure(figsize=(WIDTH, height))
    used: set[str] = set()
    for i, cost in enumerate(reversed(AXES)):
        bottom = BOTTOM + i * (panel + BETWEEN)
        place = (LEFT / WIDTH, bottom / height, 1 - (LEFT + RIGHT) / WIDTH, panel / height)
        used |= _panel(figure.add_axes(place), entries, cost, best)
    handles = [
        Line2D([], [], color=QUIET, label=k.label, marker="o", ms=5, lw=k.width, ls=k.style, fillstyle=k.fill)
        for name, k in KINDS.items()
        if name in used
    ]
    where = ((LEFT - 0.1) / WIDTH, (BOTTOM - 0.5) / height)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=where, ncols=3, frameon=False, columnspacing=2, handlelength=3
    )
    return figure


def best_so_far(run: TrainingRun) -> list[MetricsRow]:
    """Return the rows of the evaluations, each with the accuracies of the best robust one so far."""
    best: MetricsRow | None = None
    rows = []
    for row in (row for row in run.rows if row.robust is not None):
        if best is None or merit(row) > merit(best):
            best = row
        rows.append(msgspec.structs.replace(row, natural=best.natural, robust=best.robust, accuracy=None))
    return rows


def tracks(entry: Entry, cost: Cost, *, best: bool = False) -> list[Track]:
    """Return the held-out accuracies, or the training accuracy if nothing was held out."""
    found = [track_of(entry, kind, cost, best=best) for kind in ("natural", "robust")]
    return [track for track in found if len(track.x)] or [track_of(entry, "accuracy", cost, best=best)]


def has_curves(entries: Sequence[Entry], *, best: bool = False) -> bool:
    """Whether an entry has at least two points to draw."""
    return any(len(track.x) > 1 for entry in entries for track in tracks(entry, "step", best=best))


def track_of(entry: Entry, kind: str, cost: Cost, *, best: bool = False) -> Track:
    """Average over the trials, at the epochs that all of them have evaluated."""
    trials = []
    for run in entry.counted:
        rows = best_so_far(run) if best else run.rows
        cells = {row.epoch: (getattr(row, cost), getattr(row, kind)) for row in rows}
        trials.append({epoch: pair for epoch, pair in cells.items() if None not in pair})
    begun = [trial for trial in trials if trial]
    epochs = [epoch for epoch in (begun[0] if begun else {}) if all(epoch in trial for trial in begun)]
    pairs = np.array([[trial[epoch] for epoch in epochs] for trial in begun], dtype=np.float64)
    pairs = pairs.reshape(len(begun), len(epochs), 2)
    if not len(begun):
        return Track(kind, *4 * (np.empty(0),))
    x, y = pairs.mean(0).T
    return Track(kind, x, y, *trial_band(pairs[:, :, 1]))


def _panel(axes: Axes, entries: Sequence[Entry], cost: Cost, best: bool) -> set[str]:
    """Draw the curves of a panel; return the kinds of lines that it has."""
    axes.grid(visible=True)
    axes.set_xlabel(AXES[cost])
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    drawn = [tracks(entry, cost, best=best) for entry in entries]
    # the same limits with `best`, so that two figures next to each other can be compared
    _set_limits(axes, [track for entry in entries for track in tracks(entry, cost) if len(track.x)], cost)
    for order, (entry, of_entry) in enumerate(zip(entries, drawn, strict=True)):
        for track in of_entry:
            kind, zorder = KINDS[track.kind], 3 - order / len(entries)
            end = draw_track(axes, track, entry, zorder, width=kind.width, style=kind.style)
            end.set_fillstyle(kind.fill)
            values = zip(track.x, track.y, strict=True)
            texts = [f"{entry.name}, {kind.label}: {100 * y:.1f} % at {x:,.4g} {AXES[cost]}" for x, y in values]
            show_values(axes, track.x, track.y, texts, entry.name)
    name_entries(axes, entries, [_end(of_entry) for of_entry in drawn])
    return {track.kind for of_entry in drawn for track in of_entry if len(track.x)}


def draw_track(
    axes: Axes, track: Track, entry: Entry, zorder: float = 3, *, width: float = 1.6, style: LineStyleType = "-"
) -> Line2D:
    """Draw a band, a line and its end, marked as the entry's; return the end."""
    colour, marker = entry.look
    if not np.isnan(track.low).all():
        band = axes.fill_between(track.x, track.low, track.high, color=colour, alpha=0.16, linewidth=0)
        band.set_zorder(zorder - 1)
        mark_entry(entry.name, band)
    (line,) = axes.plot(track.x, track.y, color=colour, linewidth=width, linestyle=style, zorder=zorder)
    (end,) = axes.plot(track.x[-1:], track.y[-1:], marker, color=colour, markersize=5, clip_on=False, zorder=4)
    mark_entry(entry.name, line, end)
    return end


def _set_limits(axes: Axes, drawn: Sequence[Track], cost: Cost) -> None:
    """Set the limits: accuracy from 0 %, or from below the lowest if that is high; costs logarithmic if far apart."""
    highest = max((float(np.fmax(track.y, track.high).max()) for track in drawn), default=1.0)  # no band: NaN
    lowest = min((float(np.fmin(track.y, track.low).min()) for track in drawn), default=0.0)
    axes.set_ylim(max(floor(10 * lowest - 1) / 10, 0) if lowest > 0.4 else 0, min(max(1.08 * highest, 0.1), 1.0))
    ends = [float(track.x[-1]) for track in drawn]
    starts = [float(track.x[0]) for track in drawn]
    if cost != "step" and drawn and min(starts) > 0 and max(ends) > FAR * min(ends):
        axes.set_xscale("log")
        axes.set_xlim(min(starts) / 1.1, max(ends) * 1.1)
        number_log_axis(axes.xaxis, numbered=True)
    else:
        number_cost_axis(axes, max(ends, default=0.0), integer=cost == "step")


def number_cost_axis(axes: Axes, end: float, *, integer: bool) -> None:
    """Number a linear axis of costs from 0."""
    axes.set_xlim(0, 1.02 * (end or 1.0))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=integer, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(thousands_formatter())


def _end(of_entry: Sequence[Track]) -> float | None:
    """Return the accuracy at which the last track of an entry ends."""
    ends = [float(track.y[-1]) for track in of_entry if len(track.y)]
    return ends[-1] if ends else None


def name_entries(axes: Axes, entries: Sequence[Entry], ends: Sequence[float | None]) -> None:
    """Write the names of the entries near the ends of their curves; None for an entry without one."""
    bottom, top = axes.get_ylim()
    places = [0.0 if end is None else _height(axes, end, bottom, top) for end in ends]
    ordered = sorted(zip(entries, ends, places, strict=True), key=lambda found: found[2])
    names = [
        CurveName(fit_name(entry.name), entry.look, place, end is not None, entry.name) for entry, end, place in ordered
    ]
    name_curves(axes, names)


def _height(axes: Axes, value: float, bottom: float, top: float) -> float:
    """Return where a value is between the bottom (0) and the top (1) of the axes."""
    scale = axes.yaxis.get_transform().transform
    low, high, here = (float(scale(np.array([y]))[0]) for y in (bottom, top, max(value, bottom)))
    return (here - low) / (high - low)
