"""The learning curves: natural and robust accuracy of every entry, over iterations, gradient passes and seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from sihg.report.figures.labels import LINE, apart, number
from sihg.report.figures.style import INK, QUIET, shown
from sihg.report.read.entries import Entry
from sihg.report.read.palette import Look
from sihg.report.read.runs import Row, TrainingRun
from sihg.report.read.solves import Array

Cost = Literal["step", "passes", "seconds"]
AXES: dict[Cost, str] = {
    "step": "iterations",
    "passes": "gradient passes a training sample",
    "seconds": "training seconds",
}
FAR = 4  # entries whose costs differ by more than this factor need a logarithmic axis
WIDTH = 6.0
LEFT, BOTTOM, RIGHT, TOP, BETWEEN, PANEL = 0.72, 0.95, 1.58, 0.2, 0.7, 2.1  # inches
LONGEST = 17  # letters of a name
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # the column, what it is, how it is drawn (its end filled or not)
    "natural": ("natural", {"linewidth": 1.5, "linestyle": "-", "fillstyle": "none"}),
    "robust": ("robust", {"linewidth": 2.0, "linestyle": (0, (1, 1.3)), "fillstyle": "full"}),
    "accuracy": ("on the training samples", {"linewidth": 1.2, "linestyle": (0, (5, 2.5)), "fillstyle": "full"}),
}


@dataclass(frozen=True, eq=False)
class Track:
    """One accuracy of an entry over a cost: the mean over its trials, and their deviation (nan for a single one)."""

    kind: str
    x: Array
    y: Array
    deviation: Array


def learning_curves(entries: Sequence[Entry], seen: Callable[[TrainingRun], Sequence[Row]]) -> Figure:
    """Draw all entries, one panel a cost; `seen` gives the rows of a run that are drawn."""
    panel = max(PANEL, LINE * len(entries))
    height = BOTTOM + TOP + (len(AXES) - 1) * BETWEEN + len(AXES) * panel
    figure = Figure(figsize=(WIDTH, height))
    used: set[str] = set()
    for i, cost in enumerate(reversed(AXES)):
        bottom = BOTTOM + i * (panel + BETWEEN)
        place = (LEFT / WIDTH, bottom / height, 1 - (LEFT + RIGHT) / WIDTH, panel / height)
        used |= _panel(figure.add_axes(place), entries, cost, seen)
    handles = [
        Line2D([], [], color=QUIET, label=label, marker="o", markersize=5, **line)
        for kind, (label, line) in KINDS.items()
        if kind in used
    ]
    where = ((LEFT - 0.1) / WIDTH, (BOTTOM - 0.5) / height)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=where, ncols=3, frameon=False, columnspacing=2, handlelength=3
    )
    return figure


def as_it_was(run: TrainingRun) -> Sequence[Row]:
    """The rows of a run."""
    return run.rows


def best_so_far(run: TrainingRun) -> Sequence[Row]:
    """The processed curve: at each evaluation, the accuracies of the best robust one so far, the first of equals."""
    best: Row = {}
    rows = []
    for row in (row for row in run.rows if row["robust"] is not None):
        if not best or (row["robust"] or 0.0) > (best["robust"] or 0.0):
            best = row
        rows.append({**row, "natural": best["natural"], "robust": best["robust"], "accuracy": None})
    return rows


def tracks(entry: Entry, cost: Cost, seen: Callable[[TrainingRun], Sequence[Row]] = as_it_was) -> list[Track]:
    """What there is to draw: the held-out accuracies, or the training accuracy where nothing was held out."""
    found = [_track(entry, kind, cost, seen) for kind in ("natural", "robust")]
    return [track for track in found if len(track.x)] or [_track(entry, "accuracy", cost, seen)]


def _track(entry: Entry, kind: str, cost: Cost, seen: Callable[[TrainingRun], Sequence[Row]]) -> Track:
    """The mean over the trials at the epochs that all of them have evaluated."""
    trials = [
        {row["epoch"]: (row[cost], row[kind]) for row in seen(run) if row[cost] is not None and row[kind] is not None}
        for run in entry.counted
    ]
    begun = [trial for trial in trials if trial]
    epochs = [epoch for epoch in (begun[0] if begun else {}) if all(epoch in trial for trial in begun)]
    pairs = np.array([[trial[epoch] for epoch in epochs] for trial in begun], dtype=np.float64)
    pairs = pairs.reshape(len(begun), len(epochs), 2)
    if not len(begun):
        return Track(kind, *3 * (np.empty(0),))
    x, y = pairs.mean(0).T
    deviation = pairs[:, :, 1].std(0, ddof=1) if len(begun) > 1 else np.full(len(epochs), np.nan)
    return Track(kind, x, y, deviation)


def _panel(axes: Axes, entries: Sequence[Entry], cost: Cost, seen: Callable[[TrainingRun], Sequence[Row]]) -> set[str]:
    """Draw the curves of a panel; tell which kinds of lines it has."""
    axes.grid(visible=True)
    axes.set_xlabel(AXES[cost])
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    drawn = [tracks(entry, cost, seen) for entry in entries]
    _set_limits(axes, [track for some in drawn for track in some if len(track.x)], cost)
    for order, (entry, some) in enumerate(zip(entries, drawn, strict=True)):
        look = entry.look
        for track in some:
            zorder = 3 - order / len(entries)
            if not np.isnan(track.deviation).all():
                low, high = track.y - track.deviation, track.y + track.deviation
                axes.fill_between(track.x, low, high, color=look.colour, alpha=0.16, linewidth=0, zorder=zorder - 1)
            line = KINDS[track.kind][1] | {"color": look.colour}
            axes.plot(track.x, track.y, zorder=zorder, **line)
            end = line | {"linestyle": "", "marker": look.marker, "markersize": 5, "clip_on": False}
            axes.plot(track.x[-1:], track.y[-1:], zorder=4, **end)
    _write_names(axes, [(entry.name, entry.look, _end(some)) for entry, some in zip(entries, drawn, strict=True)])
    return {track.kind for some in drawn for track in some if len(track.x)}


def _set_limits(axes: Axes, drawn: Sequence[Track], cost: Cost) -> None:
    """From 0 %, or below the lowest if that is far from it, to a little over the best; costs from 0 on, or over their
    logarithms where they are far apart.
    """
    highest = max((float(track.y.max()) for track in drawn), default=1.0)
    lowest = min((float(track.y.min()) for track in drawn), default=0.0)
    axes.set_ylim(max(floor(10 * lowest - 1) / 10, 0) if lowest > 0.4 else 0, min(max(1.08 * highest, 0.1), 1.0))
    ends = [float(track.x[-1]) for track in drawn]
    starts = [float(track.x[0]) for track in drawn]
    if cost != "step" and drawn and min(starts) > 0 and max(ends) > FAR * min(ends):
        axes.set_xscale("log")
        axes.set_xlim(min(starts) / 1.1, max(ends) * 1.1)
        number(axes.xaxis, numbered=True)
    else:
        axes.set_xlim(0, max([*ends, 1.0]) * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=cost == "step", steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k


def _end(some: Sequence[Track]) -> float | None:
    """The height at which an entry is named: where its last track ends."""
    ends = [float(track.y[-1]) for track in some if len(track.y)]
    return ends[-1] if ends else None


def _write_names(axes: Axes, names: Sequence[tuple[str, Look, float | None]]) -> None:
    """Write the names beside the axes, near where the robust curves end; empty signs for entries without rows."""
    inches = axes.get_window_extent().height / axes.figure.dpi
    bottom, top = axes.get_ylim()
    ordered = sorted(names, key=lambda one: one[2] or 0.0)
    heights = apart([((end or bottom) - bottom) / (top - bottom) for _, _, end in ordered], LINE / inches)
    at: dict[str, Any] = {"transform": axes.transAxes}
    for (name, look, end), y in zip(ordered, heights, strict=True):
        fill: Literal["full", "none"] = "none" if end is None else "full"
        axes.plot(1.05, y, look.marker, color=look.colour, fillstyle=fill, markersize=5.5, clip_on=False, **at)
        ink = QUIET if end is None else INK
        axes.text(1.085, y, shown(short(name)), color=ink, va="center_baseline", parse_math=False, **at)


def short(name: str, longest: int = LONGEST) -> str:
    """A long name without its middle: runs often differ at the end."""
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"
