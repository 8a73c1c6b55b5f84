"""Draw the perturbation memory over the epochs: how far it moved, and how large its values are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sihg.report.figures.bands import trial_band
from sihg.report.figures.interactive import mark_entry, show_values
from sihg.report.figures.style import fit_name, show_plain_text
from sihg.report.read.evaluations import Floats
from sihg.report.read.runs import Entry, read_memory

WIDTH, LEFT, GAP, TOP = 7.2, 0.75, 0.95, 0.4  # inches
MOVES, MAP = (4.4, 1.7), (2.6, 1.5)
BLUE = "#0072b2"
SHADES = LinearSegmentedColormap.from_list("shades", [to_rgba(BLUE, 0), to_rgba(BLUE, 1)])  # on any ground


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory of an entry per epoch, as the mean over its trials."""

    entry: Entry
    epoch: Floats
    moved: Floats  # the mean of |new - old| / eps
    low: Floats  # the band over the trials; NaN for one trial
    high: Floats
    shares: Floats  # (epochs, bins) of |delta| / eps


def memories(entries: Sequence[Entry]) -> list[Memory]:
    """Average the memory tables of each entry that has several epochs of it."""
    found = []
    for entry in entries:
        tables = [table for run in entry.counted if len(table := read_memory(run))]
        rows = min((len(table) for table in tables), default=0)
        if rows > 1:
            every = np.stack([table[:rows] for table in tables])
            mean = every.mean(0)
            found.append(Memory(entry, mean[:, 0], mean[:, 1], *trial_band(every[:, :, 1]), mean[:, 2:]))
    return found


def memory_figure(found: Sequence[Memory]) -> Figure:
    """Draw how far all memories moved above, and a histogram over the epochs of each below."""
    across, down = min(len(found), 2), -(-len(found) // 2)
    height = TOP + MOVES[1] + down * (MAP[1] + GAP) + 0.6
    figure = Figure(figsize=(WIDTH, height))

    def place(left: float, top: float, size: tuple[float, float]) -> Axes:
        bottom = height - top - size[1]
        return figure.add_axes((left / WIDTH, bottom / height, size[0] / WIDTH, size[1] / height))

    _draw_moves(place(LEFT, TOP, MOVES), found)
    for i, memory in enumerate(found):
        row, column = divmod(i, across)
        top = TOP + MOVES[1] + GAP + row * (MAP[1] + GAP)
        _draw_map(place(LEFT + column * (MAP[0] + GAP - 0.15), top, MAP), memory, named=column == 0)
    return figure


def _draw_moves(axes: Axes, found: Sequence[Memory]) -> None:
    axes.grid(visible=True)
    axes.set_title("how far it moved")
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean |move| / ε")
    lines = []
    for memory in found:
        look = memory.entry.look
        name = memory.entry.name
        (line,) = axes.plot(memory.epoch, memory.moved, color=look.colour, marker=look.marker, markersize=3.5)
        lines.append(line)
        band = axes.fill_between(memory.epoch, memory.low, memory.high, color=look.colour, alpha=0.16, linewidth=0)
        mark_entry(name, line, band)
        pairs = zip(memory.epoch, memory.moved, strict=True)
        texts = [f"{name}: moved by {moved:.3g} ε in epoch {epoch:.0f}" for epoch, moved in pairs]
        show_values(axes, memory.epoch, memory.moved, texts, name)
    axes.set_ylim(0, 1.08 * max(axes.get_ylim()[1], max(float(memory.moved.max()) for memory in found)))
    _number_epochs(axes, max(float(memory.epoch[-1]) for memory in found))
    names = [fit_name(memory.entry.name) for memory in found]  # as labels of lines, names such as _x would be ignored
    show_plain_text(axes.legend(lines, names, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False))


def _number_epochs(axes: Axes, last: float) -> None:
    axes.set_xlim(0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _draw_map(axes: Axes, memory: Memory, *, named: bool) -> None:
    """Draw the histogram of each epoch as a column."""
    first, last, bins = memory.epoch[0], memory.epoch[-1], memory.shares.shape[1]
    drawn = axes.imshow(
        memory.shares.T,
        origin="lower",
        aspect="auto",
        cmap=SHADES,
        interpolation="nearest",
        extent=(first - 0.5, last + 0.5, 0, 1),
        vmin=0,
        vmax=max(float(memory.shares.max()), 1 / bins),
    )
    axes.set_title(fit_name(memory.entry.name, 26), parse_math=False)
    axes.set_xlabel("epoch")
    _number_epochs(axes, float(last))
    if named:
        axes.set_ylabel("|δ| / ε")
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.03, format=PercentFormatter(1, decimals=0))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=0)
    bar.set_label("share of values", fontsize=8)
