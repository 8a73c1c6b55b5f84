"""Which figures a report on training runs has, and what is said of each."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.figure import Figure

from sihg.report.figures.confusion import confusion_figure, confusions, strongest
from sihg.report.figures.examples import galleries, gallery_figure
from sihg.report.figures.learning_curves import as_it_was, best_so_far, learning_curves
from sihg.report.figures.memory_histogram import memories, memory_figure
from sihg.report.figures.radius import radii_figure, radii_of
from sihg.report.read.entries import Entry
from sihg.report.tables.table import count

CURVES = (
    "Accuracy on the samples watched while training, not trained on, as they are (solid) and under the attack of the "
    "run's evaluations (dotted), over iterations, over what was paid, forward-backward passes for each training "
    "sample, and over seconds. Entries that watch no such samples show the accuracy on those they train on (dashed)."
)
BEST = (
    "The same, processed as in the paper's second figure: at each evaluation, the accuracies of the one so far that "
    "had the best robust accuracy. It is chosen on the samples it is measured on, so it flatters a little."
)
BAND = " Bands: the mean over the trials, plus and minus their standard deviation."


class Drawing(NamedTuple):
    """A figure to be drawn: its file's name, how, what is said of it, and the part of the page it belongs to."""

    name: str
    draw: Callable[[], Figure]
    heading: str
    caption: str
    part: str


def drawings(entries: Sequence[Entry]) -> Iterator[Drawing]:
    """All figures that the runs have the records for."""
    band = BAND if any(len(entry.counted) > 1 for entry in entries) else ""
    yield Drawing("curves", partial(learning_curves, entries, as_it_was), "Learning curves", CURVES + band, "learning")
    if any(run.best for entry in entries for run in entry.counted):
        draw = partial(learning_curves, entries, best_so_far)
        yield Drawing("curves-best", draw, "Best so far", BEST + band, "learning")
    yield from _radii(entries)
    yield from _galleries(entries)
    yield from _confusion(entries)
    yield from _memory(entries)


def _radii(entries: Sequence[Entry]) -> Iterator[Drawing]:
    made = radii_of(entries)
    for i, norm in enumerate(dict.fromkeys(one.norm for one in made), 1):
        caption = (
            "Accuracy on the test samples as the ball grows, with its 95 % interval, or over several trials the mean "
            "plus and minus their standard deviation. What is proven is a lower bound."
        )
        draw = partial(radii_figure, [one for one in made if one.norm == norm])
        yield Drawing(f"radius-{i}", draw, "Accuracy against ε", caption, "attacks")


def _galleries(entries: Sequence[Entry]) -> Iterator[Drawing]:
    """One figure an entry."""
    every = [(entry, made) for entry in entries for made in galleries(entry)]
    for i, (entry, made) in enumerate(every, 1):
        some, all_of_them = len(made.label), len(made.classes)
        shown = f"; {some} of {all_of_them} classes" if some < all_of_them else ""
        caption = f"Under {made.attack} ({made.ball}); run {made.run}, checkpoint {made.checkpoint}{shown}."
        draw = partial(gallery_figure, made)
        yield Drawing(f"gallery-{i}", draw, f"What breaks {entry.name}", caption, "gallery")


def _confusion(entries: Sequence[Entry]) -> Iterator[Drawing]:
    attack = strongest(entries)
    made = [] if attack is None else confusions(entries, attack)
    if made:
        samples = count(sum(int(one.counts.sum()) for one in made), "sample", "samples")
        caption = (
            f"What the test samples of each label are taken for at the points that {attack} found, in percent of the "
            f"label ({samples} in all, trials together). On the diagonal is what holds."
        )
        yield Drawing("confusion", partial(confusion_figure, made), "Confusion under attack", caption, "attacks")


def _memory(entries: Sequence[Entry]) -> Iterator[Drawing]:
    made = memories(entries)
    if made:
        caption = (
            "Above, how far the stored perturbations moved in each epoch, the mean of |new − old| / ε over all values. "  # noqa: RUF001
            "Below, a column for each epoch: which share of the stored values has which size."
        )
        yield Drawing("memory", partial(memory_figure, made), "The perturbation memory", caption, "memory")
