"""Accuracy against the radius of the attack, as a figure."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sihg.report.style import looks, save, shown


def draw(record: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Draw the curves of a record into NAME.svg and NAME.png."""
    return save(lambda: radius_curves(record), folder, name)


def radius_curves(record: dict[str, Any]) -> Figure:
    """The curves of a record, each with its 95 % interval; the legend beside them, where no curve can be below it."""
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    axes.set_xlabel(f"radius of the attack, {'L∞' if record['norm'] == 'linf' else 'L2'}")
    axes.set_ylabel("accuracy, with its 95 % interval")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(0, 1.02)
    axes.set_xlim(record["eps"][0], record["eps"][-1])
    lines = []
    for one, look in zip(record["curves"], looks([one["attack"] for one in record["curves"]]), strict=True):
        axes.fill_between(record["eps"], one["low"], one["high"], color=look.colour, alpha=0.15, linewidth=0)
        (line,) = axes.plot(record["eps"], one["accuracy"], color=look.colour, marker=look.marker, markersize=5)
        line.set(clip_on=False, zorder=3)  # whole at the edges too
        lines.append(line)
    names = [shown(one["attack"], 30) + (" (at least)" if one.get("proof") else "") for one in record["curves"]]
    legend = figure.legend(lines, names, loc="outside right upper", frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    axes.set_title(f"{shown(record['data'])} ({record['split']}), {record['samples']} samples", parse_math=False)
    return figure
