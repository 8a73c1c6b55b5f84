"""Accuracy against the radius of the attack, as a figure."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sihg.report.style import LOOKS, save


def draw(record: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Draw the curves of a record into NAME.svg and NAME.png."""
    return save(lambda: radius_curves(record), folder, name)


def radius_curves(record: dict[str, Any]) -> Figure:
    """The curves of a record, each with its 95 % interval."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    axes.set_xlabel(f"radius of the attack, {'L∞' if record['norm'] == 'linf' else 'L2'}")
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, record["eps"][-1])
    for one, look in zip(record["curves"], LOOKS.values(), strict=False):
        axes.fill_between(record["eps"], one["low"], one["high"], color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(record["eps"], one["accuracy"], color=look.colour, marker=look.marker, label=one["attack"])
    axes.legend(frameon=False)
    axes.set_title(f"{record['data']} ({record['split']}), {record['samples']} samples")
    return figure
