"""Draw confusion matrices under attack: which classes are predicted as which."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sihg.report.figures.style import FAINT, INK, fit_name
from sihg.report.read.evaluations import ALL, PROVEN, Evaluation, read_predictions
from sihg.report.read.runs import Entry, TrainingRun

WIDTH, GAP, EDGE = 7.2, 0.75, 0.55  # inches: of the figure, between matrices, around them
MAX_NUMBERED = 12  # classes; with more, the cells are too small for numbers


@dataclass(frozen=True, eq=False)
class Confusion:
    """Samples by label (rows) and prediction under attack (columns), summed over an entry's trials."""

    entry: Entry
    counts: NDArray[np.int64]


def strongest_attack(entries: Sequence[Entry]) -> str | None:
    """Return the attack that most runs were evaluated with; of several, the one that broke most. None without any."""
    accuracies: dict[str, list[float]] = {}
    for entry in entries:
        for run in entry.counted:
            lowest: dict[str, float] = {}
            for evaluation in _attacked(run):
                lowest[evaluation.attack] = min(evaluation.accuracy, lowest.get(evaluation.attack, 1.0))
            for attack, accuracy in lowest.items():
                accuracies.setdefault(attack, []).append(accuracy)
    return min(accuracies, key=lambda name: (-len(accuracies[name]), fmean(accuracies[name])), default=None)


def confusions(entries: Sequence[Entry], attack: str) -> list[Confusion]:
    """Count predictions under the attack, per entry; of several evaluations of a run, the one on most samples."""
    matrices = []
    for entry in entries:
        found = [[evaluation for evaluation in _attacked(run) if evaluation.attack == attack] for run in entry.counted]
        largest = [max(of_run, key=lambda evaluation: evaluation.samples) for of_run in found if of_run]
        pairs = [pair for evaluation in largest if (pair := read_predictions(evaluation))]
        if pairs:
            classes = 1 + max(int(max(label.max(), prediction.max())) for label, prediction in pairs)
            counts = np.zeros((classes, classes), dtype=np.int64)
            for label, prediction in pairs:
                np.add.at(counts, (label, prediction), 1)
            matrices.append(Confusion(entry, counts))
    return matrices


def confusion_figure(matrices: Sequence[Confusion]) -> Figure:
    """Draw the matrices, two per row; each cell is the share of its label."""
    across = min(len(matrices), 2)
    side = (WIDTH - EDGE - across * GAP) / 2
    down = -(-len(matrices) // across)
    width, height = EDGE + across * (side + GAP), 0.1 + down * (side + GAP)
    figure = Figure(figsize=(width, height))
    several = len({int(matrix.counts.sum()) for matrix in matrices}) > 1
    for i, matrix in enumerate(matrices):
        row, column = divmod(i, across)
        left, bottom = EDGE + column * (side + GAP), height - 0.35 - row * (side + GAP) - side
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        _draw(axes, matrix, f" (n = {matrix.counts.sum():,})" if several else "")
        if column == 0:
            axes.set_ylabel("label")
    return figure


def _draw(axes: Axes, matrix: Confusion, size: str) -> None:
    shares = matrix.counts / np.maximum(matrix.counts.sum(1, keepdims=True), 1)
    n = len(shares)
    right = np.eye(n, dtype=bool)
    for cells, colours, top in ((right, "Blues", 1), (~right, "Oranges", 0.5)):
        axes.imshow(np.where(cells, shares, np.nan), cmap=colours, vmin=0, vmax=top)
    axes.set_title(f"{fit_name(matrix.entry.name, 30)}{size}", parse_math=False, fontsize=10)
    axes.set_xlabel("prediction under attack")
    axes.set_xticks(range(n) if n <= MAX_NUMBERED else range(0, n, 10))
    axes.set_yticks(range(n) if n <= MAX_NUMBERED else range(0, n, 10))
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(n + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(n + 1) - 0.5, minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color=FAINT, linewidth=0.4)
    for (i, j), share in np.ndenumerate(shares):
        if n <= MAX_NUMBERED and share >= 0.005:
            dark = share > (0.55 if i == j else 0.3)
            axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _attacked(run: TrainingRun) -> list[Evaluation]:
    """List the evaluations of the newest weights under attacks whose predictions per sample are kept."""
    found = [
        evaluation
        for evaluation in run.evaluations
        if evaluation.is_result
        and evaluation.attack not in ("natural", ALL)
        and evaluation.rule != PROVEN
        and evaluation.source.with_suffix(".npz").is_file()
    ]
    return [evaluation for evaluation in found if evaluation.checkpoint == "last"] or found
