"""Draw learning curves: natural and robust accuracy over iterations, gradient passes and seconds."""

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
WIDTH = 6.0
LEFT, BOTTOM, RIGHT, TOP, BETWEEN, PANEL = 0.72, 0.95, 1.58, 0.2, 0.7, 2.1  # inches


class LineKind(NamedTuple):
    """How the accuracies of a column are drawn and named."""

    label: str
    width: float
    style: LineStyleType
    fill: Literal["none", "full"]  # of the marker at its end


KINDS = {
    "natural": LineKind("natural", 1.5, "-", "none"),
    "robust": LineKind("robust", 2.0, (0, (1, 1.3)), "full"),
    "accuracy": LineKind("on the training samples", 1.2, (0, (5, 2.5)), "full"),
}


@dataclass(frozen=True, eq=False)
class Track:
    """One accuracy of an entry over a cost: the mean over its trials, and the band around it (NaN for one trial)."""

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
    found = [_track(entry, kind, cost, best) for kind in ("natural", "robust")]
    return [track for track in found if len(track.x)] or [_track(entry, "accuracy", cost, best)]


def _track(entry: Entry, kind: str, cost: Cost, best: bool) -> Track:
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
        look = entry.look
        for track in of_entry:
            zorder = 3 - order / len(entries)
            if not np.isnan(track.low).all():
                band = axes.fill_between(track.x, track.low, track.high, color=look.colour, alpha=0.16, linewidth=0)
                band.set_zorder(zorder - 1)
            kind = KINDS[track.kind]
            axes.plot(track.x, track.y, color=look.colour, linewidth=kind.width, linestyle=kind.style, zorder=zorder)
            (end,) = axes.plot(track.x[-1:], track.y[-1:], look.marker, color=look.colour, markersize=5, zorder=4)
            end.set(fillstyle=kind.fill, clip_on=False)
    _name_entries(axes, entries, [_end(of_entry) for of_entry in drawn])
    return {track.kind for of_entry in drawn for track in of_entry if len(track.x)}


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
        axes.set_xlim(0, 1.02 * (max(ends, default=0.0) or 1.0))
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=cost == "step", steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(thousands_formatter())


def _end(of_entry: Sequence[Track]) -> float | None:
    """Return the accuracy at which the last track of an entry ends."""
    ends = [float(track.y[-1]) for track in of_entry if len(track.y)]
    return ends[-1] if ends else None


def _name_entries(axes: Axes, entries: Sequence[Entry], ends: Sequence[float | None]) -> None:
    """Write the names of the entries near the ends of their robust curves."""
    bottom, top = axes.get_ylim()
    ordered = sorted(zip(entries, ends, strict=True), key=lambda pair: pair[1] or 0.0)
    names = [
        CurveName(fit_name(entry.name), entry.look, ((end or bottom) - bottom) / (top - bottom), end is not None)
        for entry, end in ordered
    ]
    name_curves(axes, names)
