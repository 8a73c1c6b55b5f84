"""The perturbation memory over the epochs: how far it moved, and how large what it holds is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sihg.errors import InputError
from sihg.report.figures.learning_curves import short
from sihg.report.figures.style import shown
from sihg.report.read.entries import Entry
from sihg.report.read.runs import TrainingRun
from sihg.report.read.solves import Array
from sihg.store.tables import read_table

WIDTH, LEFT, GAP, TOP = 7.2, 0.75, 0.95, 0.4  # inches
MOVES, MAP = (4.4, 1.7), (2.6, 1.5)


@dataclass(frozen=True, eq=False)
class Memory:
    """What an entry's memory did, epoch by epoch, as the mean over its trials."""

    entry: Entry
    epoch: Array
    moved: Array  # the mean of |new - old| / eps
    deviation: Array  # of that over the trials, nan for a single one
    shares: Array  # (epochs, bins) of |delta| / eps


def memories(entries: Sequence[Entry]) -> list[Memory]:
    """Those of the entries that have a memory."""
    made = []
    for entry in entries:
        tables = [table for run in entry.counted if len(table := _table(run))]
        if tables:
            rows = min(len(table) for table in tables)
            every = np.stack([table[:rows] for table in tables])
            mean = every.mean(0)
            deviation = every[:, :, 1].std(0, ddof=1) if len(tables) > 1 else np.full(rows, np.nan)
            made.append(Memory(entry, mean[:, 0], mean[:, 1], deviation, mean[:, 2:]))
    return made


def memory_figure(made: Sequence[Memory]) -> Figure:
    """Above how far all of them moved, below a map of each."""
    across, down = min(len(made), 2), -(-len(made) // 2)
    height = TOP + MOVES[1] + down * (MAP[1] + GAP) + 0.6
    figure = Figure(figsize=(WIDTH, height))

    def place(left: float, top: float, size: tuple[float, float]) -> Axes:
        bottom = height - top - size[1]
        return figure.add_axes((left / WIDTH, bottom / height, size[0] / WIDTH, size[1] / height))

    _draw_moves(place(LEFT, TOP, MOVES), made)
    for i, one in enumerate(made):
        below, beside = divmod(i, across)
        top = TOP + MOVES[1] + GAP + below * (MAP[1] + GAP)
        _draw_map(place(LEFT + beside * (MAP[0] + GAP - 0.15), top, MAP), one, named=beside == 0)
    return figure


def _draw_moves(axes: Axes, made: Sequence[Memory]) -> None:
    axes.grid(visible=True)
    axes.set_title("how far it moved")
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean |move| / ε")
    for one in made:
        look, name = one.entry.look, shown(short(one.entry.name))
        axes.plot(one.epoch, one.moved, color=look.colour, marker=look.marker, markersize=3.5, label=name)
        low, high = one.moved - one.deviation, one.moved + one.deviation
        axes.fill_between(one.epoch, low, high, color=look.colour, alpha=0.16, linewidth=0)
    axes.set_ylim(0, 1.08 * max(axes.get_ylim()[1], max(float(one.moved.max()) for one in made)))
    _number_epochs(axes, max(float(one.epoch[-1]) for one in made))
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _number_epochs(axes: Axes, last: float) -> None:
    """Whole epochs from the first to the last, also where there is but one."""
    axes.set_xlim(0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def _draw_map(axes: Axes, one: Memory, *, named: bool) -> None:
    """The histogram of each epoch as a column."""
    first, last, bins = one.epoch[0], one.epoch[-1], one.shares.shape[1]
    drawn = axes.imshow(
        one.shares.T,
        origin="lower",
        aspect="auto",
        cmap="Blues",
        interpolation="nearest",
        extent=(first - 0.5, last + 0.5, 0, 1),
        vmin=0,
        vmax=max(float(one.shares.max()), 1 / bins),
    )
    axes.set_title(shown(short(one.entry.name, 26)), parse_math=False)
    axes.set_xlabel("epoch")
    _number_epochs(axes, float(last))
    if named:
        axes.set_ylabel("|δ| / ε")
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.03, format=PercentFormatter(1, decimals=0))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=0)


def _table(run: TrainingRun) -> Array:
    """The rows of memory.csv: epoch, moved, and the share of each bin; none where there is no such file."""
    source = run.folder.memory_table
    rows = read_table(source) if source.is_file() else []
    bins = [key for key in (rows[0] if rows else {}) if key.startswith("to_")]
    try:
        return np.array([[float(row[key]) for key in ("epoch", "moved", *bins)] for row in rows], dtype=np.float64)
    except (ValueError, KeyError) as error:
        raise InputError(f"{source} has a cell that is no number ({error}): repair that cell") from error
