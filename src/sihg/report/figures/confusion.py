"""Confusion under attack: which classes are taken for which, at the points that an attack found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.report.figures.learning_curves import short
from sihg.report.figures.style import FAINT, INK, shown
from sihg.report.read.entries import Entry
from sihg.report.read.evaluations import ALL, PROVEN, Evaluation
from sihg.report.read.npz_arrays import read_arrays
from sihg.report.read.runs import TrainingRun

WIDTH, GAP, EDGE = 7.2, 0.75, 0.55  # inches: of the figure, between matrices, around them
NUMBERED = 12  # classes; with more, cells are too small for numbers


@dataclass(frozen=True, eq=False)
class Confusion:
    """Samples by label (rows) and prediction under attack (columns), over an entry's trials."""

    entry: Entry
    counts: NDArray[np.int64]


def strongest(entries: Sequence[Entry]) -> str | None:
    """The attack that most runs were evaluated with, of these the one that broke most; None where there is none."""
    accuracies: dict[str, list[float]] = {}
    for entry in entries:
        for run in entry.counted:
            for attack in {one.attack for one in _found(run)}:
                accuracies.setdefault(attack, []).append(min(o.accuracy for o in _found(run) if o.attack == attack))
    return min(accuracies, key=lambda name: (-len(accuracies[name]), fmean(accuracies[name])), default=None)


def confusions(entries: Sequence[Entry], attack: str) -> list[Confusion]:
    """The matrix of each entry that was evaluated with the attack, on the largest samples that it was."""
    made = []
    for entry in entries:
        found = [[one for one in _found(run) if one.attack == attack] for run in entry.counted]
        largest = [max(some, key=lambda one: one.samples or 0) for some in found if some]
        pairs = [pair for one in largest if (pair := _pairs(one))]
        if pairs:
            classes = 1 + max(int(max(label.max(), seen.max())) for label, seen in pairs)
            counts = np.zeros((classes, classes), dtype=np.int64)
            for label, seen in pairs:
                np.add.at(counts, (label, seen), 1)
            made.append(Confusion(entry, counts))
    return made


def confusion_figure(made: Sequence[Confusion]) -> Figure:
    """Draw the matrices, two beside each other, each cell the share of its label."""
    across = min(len(made), 2)
    side = (WIDTH - EDGE - across * GAP) / 2
    down = -(-len(made) // across)
    width, height = EDGE + across * (side + GAP), 0.35 + down * (side + GAP)
    figure = Figure(figsize=(width, height))
    for i, one in enumerate(made):
        below, beside = divmod(i, across)
        left, bottom = EDGE + beside * (side + GAP), height - 0.35 - below * (side + GAP) - side
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        _draw(axes, one)
        if beside == 0:
            axes.set_ylabel("label")
    return figure


def _draw(axes: Axes, one: Confusion) -> None:
    shares = one.counts / np.maximum(one.counts.sum(1, keepdims=True), 1)
    n = len(shares)
    right = np.eye(n, dtype=bool)
    for of_these, colours in ((right, "Blues"), (~right, "Oranges")):
        axes.imshow(np.where(of_these, shares, np.nan), cmap=colours, vmin=0, vmax=1 if of_these is right else 0.5)
    axes.set_title(shown(short(one.entry.name, 30)), parse_math=False, fontsize=10)
    axes.set_xlabel("prediction under attack")
    axes.set_xticks(range(n) if n <= NUMBERED else range(0, n, 10))
    axes.set_yticks(range(n) if n <= NUMBERED else range(0, n, 10))
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(n + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(n + 1) - 0.5, minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color=FAINT, linewidth=0.4)
    for (i, j), share in np.ndenumerate(shares):
        if n <= NUMBERED and share >= 0.005:
            dark = share > (0.55 if i == j else 0.3)
            axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=6, color="white" if dark else INK)


def _found(run: TrainingRun) -> list[Evaluation]:
    """Evaluations of the run as it is now, under attacks whose findings for each sample are kept."""
    attacks = [
        one
        for one in run.evaluations
        if one.is_result and one.attack not in ("natural", ALL) and one.rule != PROVEN and _file(one).is_file()
    ]
    return [one for one in attacks if one.checkpoint == "last"] or attacks


def _file(one: Evaluation) -> Path:
    return one.source.with_suffix(".npz")


def _pairs(one: Evaluation) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The label of each sample and its prediction at the point found, None where no predictions were kept."""
    source, names = _file(one), ("label", "attack", "prediction")
    found = read_arrays(source, names)
    if len(found) < len(names):
        return None
    attacks = [str(name) for name in found["attack"]]
    label, seen = found["label"], found["prediction"]
    if one.attack not in attacks or seen.shape != (len(attacks), len(label)) or not len(label) or min(label) < 0:
        raise InputError(f"{source} does not fit {one.source.name}: evaluate the run again, or take both away")
    mine = seen[attacks.index(one.attack)]
    attacked = mine >= 0
    return label[attacked].astype(np.int64), mine[attacked].astype(np.int64)
