"""The learning curves: natural and robust accuracy of every run, over epochs and over gradient passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sihg.report.labels import LINE, apart, number
from sihg.report.records import Array
from sihg.report.style import INK, QUIET, Look, looks, shown
from sihg.report.trained import TrainingRun

Cost = Literal["epoch", "passes"]
AXES: dict[Cost, str] = {"epoch": "epochs", "passes": "gradient passes a training sample"}
FAR = 4  # runs whose costs differ by more than this factor need a logarithmic axis
WIDTH = 6.0
LEFT, BOTTOM, RIGHT, TOP, BETWEEN, PANEL = 0.72, 0.95, 1.58, 0.2, 0.7, 2.3  # inches
LONGEST = 17  # letters of a name
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # the column, what it is, how it is drawn
    "natural": ("natural", {"linewidth": 1.5, "linestyle": "-"}),
    "robust": ("robust", {"linewidth": 2.0, "linestyle": (0, (1, 1.3))}),
    "accuracy": ("on the training samples", {"linewidth": 1.2, "linestyle": (0, (5, 2.5))}),
}


@dataclass(frozen=True, eq=False)
class Track:
    """One accuracy of a run over a cost."""

    kind: str
    x: Array
    y: Array


def learning_curves(runs: Sequence[TrainingRun]) -> Figure:
    """Draw all runs, above over epochs and below over what was paid for them."""
    panel = max(PANEL, LINE * len(runs))
    height = BOTTOM + TOP + BETWEEN + 2 * panel
    figure = Figure(figsize=(WIDTH, height))
    used: set[str] = set()
    panels: list[tuple[Cost, float]] = [("epoch", BOTTOM + panel + BETWEEN), ("passes", BOTTOM)]
    for cost, bottom in panels:
        place = (LEFT / WIDTH, bottom / height, 1 - (LEFT + RIGHT) / WIDTH, panel / height)
        used |= _panel(figure.add_axes(place), runs, cost)
    handles = [
        Line2D([], [], color=QUIET, label=label, **line) for kind, (label, line) in KINDS.items() if kind in used
    ]
    where = ((LEFT - 0.1) / WIDTH, (BOTTOM - 0.5) / height)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=where, ncols=3, frameon=False, columnspacing=2, handlelength=3
    )
    return figure


def tracks(run: TrainingRun, cost: Cost) -> list[Track]:
    """What there is to draw of a run: its held-out accuracies, or the training accuracy where nothing was held out."""
    found = [_track(run, kind, cost) for kind in ("natural", "robust")]
    return [track for track in found if len(track.x)] or [_track(run, "accuracy", cost)]


def _track(run: TrainingRun, kind: str, cost: Cost) -> Track:
    pairs = [(row[cost], row[kind]) for row in run.rows if row[cost] is not None and row[kind] is not None]
    x, y = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return Track(kind, x, y)


def _panel(axes: Axes, runs: Sequence[TrainingRun], cost: Cost) -> set[str]:
    """Draw the curves of a panel; tell which kinds of lines it has."""
    axes.grid(visible=True)
    axes.set_xlabel(AXES[cost])
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    drawn = [tracks(run, cost) for run in runs]
    _set_limits(axes, [track for some in drawn for track in some if len(track.x)], cost)
    styles = looks([run.method for run in runs])
    for order, (some, look) in enumerate(zip(drawn, styles, strict=True)):
        for track in some:
            zorder = 3 - order / len(runs)
            axes.plot(track.x, track.y, color=look.colour, zorder=zorder, **KINDS[track.kind][1])
            axes.plot(track.x[-1:], track.y[-1:], look.marker, color=look.colour, markersize=5, clip_on=False, zorder=4)
    names = [(run.name, look, _end(some)) for run, look, some in zip(runs, styles, drawn, strict=True)]
    _write_names(axes, names)
    return {track.kind for some in drawn for track in some if len(track.x)}


def _set_limits(axes: Axes, drawn: Sequence[Track], cost: Cost) -> None:
    """From 0 % to a little over the best; costs from 0 on, or over their logarithms where they are far apart."""
    highest = max((float(track.y.max()) for track in drawn), default=1.0)
    axes.set_ylim(0, min(max(1.08 * highest, 0.1), 1.0))
    ends = [float(track.x[-1]) for track in drawn]
    starts = [float(track.x[0]) for track in drawn]
    if cost == "passes" and drawn and min(starts) > 0 and max(ends) > FAR * min(ends):
        axes.set_xscale("log")
        axes.set_xlim(min(starts) / 1.1, max(ends) * 1.1)
        number(axes.xaxis, numbered=True)
    else:
        axes.set_xlim(0, max([*ends, 1.0]) * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=cost == "epoch", steps=[1, 2, 5, 10]))


def _end(some: Sequence[Track]) -> float | None:
    """The height at which a run is named: where its last track ends."""
    ends = [float(track.y[-1]) for track in some if len(track.y)]
    return ends[-1] if ends else None


def _write_names(axes: Axes, names: Sequence[tuple[str, Look, float | None]]) -> None:
    """Write the runs' names beside the axes, near where their robust curves end; empty signs for runs without rows."""
    inches = axes.get_window_extent().height / axes.figure.dpi
    top = axes.get_ylim()[1]
    ordered = sorted(names, key=lambda one: one[2] or 0.0)
    heights = apart([(end or 0.0) / top for _, _, end in ordered], LINE / inches)
    at: dict[str, Any] = {"transform": axes.transAxes}
    for (name, look, end), y in zip(ordered, heights, strict=True):
        fill: Literal["full", "none"] = "none" if end is None else "full"
        axes.plot(1.05, y, look.marker, color=look.colour, fillstyle=fill, markersize=5.5, clip_on=False, **at)
        ink = QUIET if end is None else INK
        axes.text(1.085, y, shown(_short(name)), color=ink, va="center_baseline", parse_math=False, **at)


def _short(name: str) -> str:
    """A long name without its middle: runs often differ at the end."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half:]}"
