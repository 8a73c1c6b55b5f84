"""Draw what the training itself reports, from metrics.csv: loss, training accuracy and learning rate."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sihg.report.figures.interactive import show_values
from sihg.report.figures.learning_curves import (
    BETWEEN,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Track,
    draw_track,
    name_entries,
    number_cost_axis,
    track_of,
)
from sihg.report.figures.style import LINE, number_log_axis
from sihg.report.read.runs import Entry

PANEL, BOTTOM = 1.55, 0.55  # inches
WIDE = 10  # values that differ by more than this factor need a logarithmic axis


class Quantity(NamedTuple):
    """A column of metrics.csv: its label, and how its values are written."""

    column: str
    label: str
    form: str


QUANTITIES = (
    Quantity("loss", "training loss", "{:.3g}"),
    Quantity("accuracy", "training accuracy", "{:.1%}"),
    Quantity("lr", "learning rate", "{:.3g}"),
)


def drawn_quantities(entries: Sequence[Entry]) -> list[Quantity]:
    """List the quantities of which an entry has at least two epochs."""
    return [q for q in QUANTITIES if any(len(track_of(entry, q.column, "step").x) > 1 for entry in entries)]


def training_curves(entries: Sequence[Entry]) -> Figure:
    """Draw a panel per quantity, over iterations."""
    shown = drawn_quantities(entries)
    panel = max(PANEL, LINE * len(entries))
    height = TOP + BOTTOM + len(shown) * panel + (len(shown) - 1) * BETWEEN / 2
    figure = Figure(figsize=(WIDTH, height))
    for i, quantity in enumerate(reversed(shown)):
        bottom = BOTTOM + i * (panel + BETWEEN / 2)
        box = (LEFT / WIDTH, bottom / height, 1 - (LEFT + RIGHT) / WIDTH, panel / height)
        axes = figure.add_axes(box)
        _panel(axes, quantity, entries)
        axes.tick_params(labelbottom=i == 0)
    figure.axes[0].set_xlabel("iterations")
    return figure


def _panel(axes: Axes, quantity: Quantity, entries: Sequence[Entry]) -> None:
    axes.grid(visible=True)
    axes.set_ylabel(quantity.label)
    tracks = [track_of(entry, quantity.column, "step") for entry in entries]
    for entry, track in zip(entries, tracks, strict=True):
        if len(track.x):
            draw_track(axes, track, entry)
            pairs = zip(track.x, track.y, strict=True)
            texts = [
                f"{entry.name}: {quantity.label} {quantity.form.format(y)} at iteration {x:,.0f}" for x, y in pairs
            ]
            show_values(axes, track.x, track.y, texts, entry.name)
    number_cost_axis(axes, max(float(track.x[-1]) for track in tracks if len(track.x)), integer=True)
    _set_values(axes, quantity, [track for track in tracks if len(track.x)])
    name_entries(axes, entries, [float(track.y[-1]) if len(track.y) else None for track in tracks])


def _set_values(axes: Axes, quantity: Quantity, tracks: Sequence[Track]) -> None:
    """Set the limits: accuracy from 0 to 100 %, other values from 0, or logarithmic if far apart."""
    values = np.concatenate([track.y for track in tracks])
    if quantity.column == "accuracy":
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif quantity.column == "loss" and values.min() > 0 and values.max() > WIDE * values.min():
        axes.set_yscale("log")
        axes.set_ylim(values.min() / 1.3, values.max() * 1.3)
        number_log_axis(axes.yaxis, numbered=True)
    else:
        axes.set_ylim(min(0.0, float(values.min())), 1.08 * float(values.max()) or 1.0)
