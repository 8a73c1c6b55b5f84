"""Draw accuracy against the radius of the attack, of one record or of several entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from sihg.report.figures.bands import trial_band
from sihg.report.figures.interactive import mark_entry, show_values
from sihg.report.figures.style import (
    LONGEST_NAME,
    QUIET,
    figure_style,
    fit_name,
    fit_text,
    save_figure,
    show_plain_text,
)
from sihg.report.read.evaluations import PROVEN, Floats, RadiusCurve, SampleSet
from sihg.report.read.palette import looks
from sihg.report.read.runs import Entry
from sihg.store.schema import CurveRecord

MAX_MARKERS = 25  # of a line; more would hide it
LINES = ("-", (0, (1, 1.3)), (0, (5, 2)), (0, (6, 2, 1, 2)))  # of the attacks, in turn


def save_record_curves(record: CurveRecord, folder: Path, name: str) -> list[Path]:
    """Draw the curves of a record into NAME.svg and NAME.png; return their paths."""
    with figure_style():
        return save_figure(record_curves(record), folder, name)


def record_curves(record: CurveRecord) -> Figure:
    """Draw the curves of a record, each with its 95 % interval."""
    figure, axes = _empty(record.norm, record.eps)
    axes.set_ylabel("accuracy, with its 95 % interval")
    lines = []
    for row, look in zip(record.curves, looks([row.attack for row in record.curves]), strict=True):
        axes.fill_between(record.eps, row.low, row.high, color=look.colour, alpha=0.15, linewidth=0)
        _show_values(axes, row.attack, record.eps, row.accuracy, row.low, row.high, entry="")
        marker = look.marker if len(record.eps) <= MAX_MARKERS else ""
        (line,) = axes.plot(record.eps, row.accuracy, color=look.colour, marker=marker, markersize=5)
        line.set(clip_on=False, zorder=3)  # whole markers at the edges
        lines.append(line)
    names = [fit_text(row.attack, 30) + (" (at least)" if row.proof else "") for row in record.curves]
    _add_legend(figure, lines, names)
    split = f" ({record.split})" if record.split else ""
    axes.set_title(f"{fit_text(record.data)}{split}, {record.samples} samples", parse_math=False)
    return figure


@dataclass(frozen=True, eq=False)
class EntryCurve:
    """An entry's accuracy over the radius of an attack: the mean over its trials, and a band around it."""

    entry: Entry
    attack: str  # with the checkpoint and the rule, where needed
    eps: tuple[float, ...]
    norm: str
    accuracy: Floats
    low: Floats  # the band over several trials, otherwise the 95 % interval
    high: Floats


def entry_curves(entries: Sequence[Entry]) -> list[EntryCurve]:
    """Average the curves of each entry on its own test samples over its trials, each average over the same samples.

    Checkpoints are named if several were evaluated, and numbers of samples if they differ.
    """
    results = [curve for entry in entries for run in entry.counted for curve in run.radii if curve.is_result]
    several, sizes = len({curve.checkpoint for curve in results}) > 1, {curve.samples for curve in results}
    found = []
    for entry in entries:
        same: dict[tuple[str, str, tuple[float, ...], SampleSet], list[RadiusCurve]] = {}
        for run in entry.counted:
            largest: dict[tuple[str, str, tuple[float, ...]], RadiusCurve] = {}
            for curve in run.radii:
                key = (_attack_name(curve, with_checkpoint=several), curve.norm, curve.eps)
                if curve.is_result and (key not in largest or largest[key].samples < curve.samples):
                    largest[key] = curve
            for (_, norm, eps), curve in largest.items():
                name = _attack_name(curve, with_checkpoint=several, with_samples=len(sizes) > 1)
                same.setdefault((name, norm, eps, curve.sample_set), []).append(curve)
        for (attack, norm, eps, _), trials in same.items():
            every = np.array([curve.accuracy for curve in trials])
            alone = np.array(trials[0].low), np.array(trials[0].high)
            band = trial_band(every) if len(trials) > 1 else alone
            found.append(EntryCurve(entry, attack, eps, norm, every.mean(0), *band))
    return found


def _attack_name(curve: RadiusCurve, *, with_checkpoint: bool, with_samples: bool = False) -> str:
    rule = {PROVEN: "at least", "last iterate": "last iterate"}.get(curve.rule, "")
    parts = (curve.checkpoint if with_checkpoint else "", rule, f"n = {curve.samples}" if with_samples else "")
    details = ", ".join(part for part in parts if part)
    return f"{curve.attack} ({details})" if details else curve.attack


def radius_figure(curves: Sequence[EntryCurve]) -> Figure:
    """Draw curves in one norm: a colour per entry, a line style per attack; the radius of the training is marked."""
    figure, axes = _empty(curves[0].norm, [eps for curve in curves for eps in (curve.eps[0], curve.eps[-1])])
    trained = {curve.entry.settings.get("eps") for curve in curves if curve.entry.settings.get("norm") == curve.norm}
    for eps in sorted(value for value in trained if isinstance(value, int | float)):
        _mark_training(axes, eps)
    attacks = list(dict.fromkeys(curve.attack for curve in curves))
    lines = []
    for curve in curves:
        look, dashes = curve.entry.look, LINES[attacks.index(curve.attack) % len(LINES)]
        band = axes.fill_between(curve.eps, curve.low, curve.high, color=look.colour, alpha=0.15, linewidth=0)
        marker = look.marker if len(curve.eps) <= MAX_MARKERS else ""
        (line,) = axes.plot(curve.eps, curve.accuracy, color=look.colour, marker=marker, markersize=4)
        line.set(linestyle=dashes, clip_on=False, zorder=3)
        lines.append(line)
        entry = curve.entry.name
        mark_entry(entry, band, line)
        about = f"{entry}, {curve.attack}"
        _show_values(axes, about, curve.eps, curve.accuracy.tolist(), curve.low, curve.high, entry=entry)
    _add_legend(figure, lines, [fit_text(f"{fit_name(curve.entry.name)}, {curve.attack}", 34) for curve in curves])
    return figure


def _mark_training(axes: Axes, eps: float) -> None:
    """Draw a line at the radius of the training, if it is inside the axes."""
    low, high = axes.get_xlim()
    if low < eps < high:
        axes.axvline(eps, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.text(eps, 1.03, f"training ε = {eps:.4g}", color=QUIET, ha="center", fontsize=8)


def _show_values(
    axes: Axes,
    about: str,
    eps: Sequence[float],
    accuracy: Sequence[float],
    low: Sequence[float] | Floats,
    high: Sequence[float] | Floats,
    *,
    entry: str,
) -> None:
    rows = zip(eps, accuracy, low, high, strict=True)
    texts = [f"{about}: {100 * a:.1f} % ({100 * lo:.1f} to {100 * hi:.1f}) at ε = {e:.4g}" for e, a, lo, hi in rows]
    show_values(axes, eps, accuracy, texts, entry)


def _empty(norm: str, eps: Sequence[float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.4, 3.7), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    axes.set_xlabel(f"radius of the attack, {'L∞' if norm == 'linf' else norm.upper()}", parse_math=False)
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(0, 1.02)
    axes.set_xlim(min(eps), max(eps))
    return figure, axes


def _add_legend(figure: Figure, lines: Sequence[Line2D], names: Sequence[str]) -> None:
    across = 1 if max(map(len, names)) > 2 * LONGEST_NAME else 2
    show_plain_text(figure.legend(lines, names, loc="outside lower left", ncols=across, frameon=False))
