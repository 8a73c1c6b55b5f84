"""Draw confusion matrices under attack: which classes are predicted as which."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sihg.report.figures.interactive import mark_entry, show_values
from sihg.report.figures.style import FAINT, INK
from sihg.report.read.evaluations import ALL, PROVEN, Evaluation, read_predictions
from sihg.report.read.runs import Entry, TrainingRun

SIDE, EDGE = 3.6, 0.5  # inches: of the matrix, and beside it for labels
CORRECT, WRONG = "#0072b2", "#d55e00"
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


def confusion_figure(matrix: Confusion) -> Figure:
    """Draw a matrix; each cell is the share of its label."""
    width, height = EDGE + SIDE + 0.1, EDGE + SIDE + 0.1
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((EDGE / width, EDGE / height, SIDE / width, SIDE / height))
    mark_entry(matrix.entry.name, axes)
    shares = matrix.counts / np.maximum(matrix.counts.sum(1, keepdims=True), 1)
    n = len(shares)
    right = np.eye(n, dtype=bool)
    shades = np.zeros((n, n, 4))  # the opacity is the share, so that it is read on any ground
    shades[..., :3] = np.where(right[..., None], to_rgb(CORRECT), to_rgb(WRONG))
    shades[..., 3] = np.where(right, shares, np.minimum(2 * shares, 1))
    axes.imshow(shades, interpolation="nearest")
    axes.set_xlabel("prediction under attack")
    axes.set_ylabel("label")
    axes.set_xticks(range(n) if n <= MAX_NUMBERED else range(0, n, 10))
    axes.set_yticks(range(n) if n <= MAX_NUMBERED else range(0, n, 10))
    axes.tick_params(length=0, labelsize=10)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(n + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(n + 1) - 0.5, minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color=FAINT, linewidth=0.4)
    for (i, j), share in np.ndenumerate(shares):
        if n <= MAX_NUMBERED and share >= 0.005:
            strong = shades[i, j, 3] > 0.6
            text = axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=10)
            text.set_color("white" if strong else INK)
    _show_counts(axes, matrix)
    return figure


def _show_counts(axes: Axes, matrix: Confusion) -> None:
    labels, predictions = np.nonzero(matrix.counts)
    texts = [
        f"label {i}, predicted {j}: {matrix.counts[i, j]:,} of {matrix.counts[i].sum():,}"
        for i, j in zip(labels, predictions, strict=True)
    ]
    show_values(axes, predictions, labels, texts, matrix.entry.name, most=len(texts))


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
