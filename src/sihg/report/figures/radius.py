"""Accuracy against the radius of the attack, as a figure: of one record, or of entries beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sihg.report.figures.learning_curves import short
from sihg.report.figures.style import save, shown
from sihg.report.read.entries import Entry
from sihg.report.read.evaluations import PROVEN, RadiusCurve
from sihg.report.read.palette import looks
from sihg.report.read.solves import Array

LINES = ("-", (0, (1, 1.3)), (0, (5, 2)), (0, (6, 2, 1, 2)))  # of the attacks, in turn


def draw(record: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Draw the curves of a record into NAME.svg and NAME.png."""
    return save(lambda: radius_curves(record), folder, name)


def radius_curves(record: dict[str, Any]) -> Figure:
    """The curves of a record, each with its 95 % interval."""
    figure, axes = _empty(record["norm"], record["eps"])
    axes.set_ylabel("accuracy, with its 95 % interval")
    lines = []
    for one, look in zip(record["curves"], looks([one["attack"] for one in record["curves"]]), strict=True):
        axes.fill_between(record["eps"], one["low"], one["high"], color=look.colour, alpha=0.15, linewidth=0)
        (line,) = axes.plot(record["eps"], one["accuracy"], color=look.colour, marker=look.marker, markersize=5)
        line.set(clip_on=False, zorder=3)  # whole at the edges too
        lines.append(line)
    names = [shown(one["attack"], 30) + (" (at least)" if one.get("proof") else "") for one in record["curves"]]
    _name(figure, lines, names)
    axes.set_title(f"{shown(record['data'])} ({record['split']}), {record['samples']} samples", parse_math=False)
    return figure


@dataclass(frozen=True, eq=False)
class Radii:
    """An entry's accuracy over the radius of an attack: the mean over its trials, and a band around it."""

    entry: Entry
    attack: str  # and the checkpoint and the rule, where they are to be told
    eps: tuple[float, ...]
    norm: str
    accuracy: Array
    low: Array  # mean minus and plus deviation over several trials, else the 95 % interval
    high: Array


def radii_of(entries: Sequence[Entry]) -> list[Radii]:
    """The curves of all entries on their own test samples; trials go together where the same was asked.

    Checkpoints are named where there are curves of several.
    """
    checkpoints = {one.checkpoint for entry in entries for run in entry.counted for one in run.radii if one.is_result}
    made = []
    for entry in entries:
        alike: dict[tuple[str, str, tuple[float, ...]], list[RadiusCurve]] = {}
        for run in entry.counted:
            own: dict[tuple[str, str, tuple[float, ...]], RadiusCurve] = {}
            for one in run.radii:
                key = (_asked(one, several=len(checkpoints) > 1), one.norm, one.eps)
                if one.is_result and (key not in own or (own[key].samples or 0) < (one.samples or 0)):
                    own[key] = one
            for key, one in own.items():
                alike.setdefault(key, []).append(one)
        for (attack, norm, eps), trials in alike.items():
            every = np.array([one.accuracy for one in trials])
            mean = every.mean(0)
            deviation = every.std(0, ddof=1) if len(trials) > 1 else np.zeros(len(eps))
            low, high = (
                (mean - deviation, mean + deviation)
                if len(trials) > 1
                else (np.array(trials[0].low), np.array(trials[0].high))
            )
            made.append(Radii(entry, attack, eps, norm, mean, low, high))
    return made


def _asked(one: RadiusCurve, *, several: bool) -> str:
    """The attack, with what keeps its curve apart from others."""
    rule = {PROVEN: "at least", "last iterate": "last iterate"}.get(one.rule, "")
    apart = ", ".join(part for part in (one.checkpoint if several else "", rule) if part)
    return f"{one.attack} ({apart})" if apart else one.attack


def radii_figure(made: Sequence[Radii]) -> Figure:
    """Draw them in one norm: a colour an entry, a line style an attack."""
    figure, axes = _empty(made[0].norm, [eps for one in made for eps in (one.eps[0], one.eps[-1])])
    attacks = list(dict.fromkeys(one.attack for one in made))
    lines = []
    for one in made:
        look, dashes = one.entry.look, LINES[attacks.index(one.attack) % len(LINES)]
        axes.fill_between(one.eps, one.low, one.high, color=look.colour, alpha=0.15, linewidth=0)
        (line,) = axes.plot(one.eps, one.accuracy, color=look.colour, marker=look.marker, markersize=4)
        line.set(linestyle=dashes, clip_on=False, zorder=3)
        lines.append(line)
    _name(figure, lines, [shown(f"{short(one.entry.name)}, {one.attack}", 34) for one in made])
    return figure


def _empty(norm: str, eps: Sequence[float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    axes.set_xlabel(f"radius of the attack, {'L∞' if norm == 'linf' else 'L2'}")
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(0, 1.02)
    axes.set_xlim(min(eps), max(eps))
    return figure, axes


def _name(figure: Figure, lines: Sequence[Any], names: Sequence[str]) -> None:
    """The legend beside the curves, where none can be below it."""
    legend = figure.legend(lines, names, loc="outside right upper", frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
