"""Draw the paper's results beside ours, from the committed records.

    python -m benchmarks.results_figure --out docs/results

Each row is a method of one archive, with the share of the paper's epochs that it was trained for.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sihg.report.figures.style import FAINT, INK, QUIET, figure_style, save_figure
from sihg.report.read.palette import look
from sihg.report.read.published import Published, find_published
from sihg.report.read.runs import Entry, group_trials, read_runs
from sihg.store.archive import unpacked
from sihg.store.statistics import Spread, spread

ARCHIVES = ("paper-mnist", "mnist", "mnist-no-box", "svhn", "cifar10")  # in results/
ATTACKS = ("natural", "pgd-20", "pgd-50-10")
TITLES = {"mnist": "MNIST", "svhn": "SVHN", "cifar10": "CIFAR-10"}
ROW = 0.27  # inches


class ResultRow(NamedTuple):
    """A method: its label, its colour, and accuracies under each attack, ours and the paper's."""

    label: str
    color: str
    ours: dict[str, Spread]
    theirs: dict[str, Spread]


def read_rows(results: Path) -> Iterator[ResultRow]:
    """Return the rows, archive by archive."""
    archives = [path for name in ARCHIVES if (path := results / f"{name}.zip").exists()]
    for archive in archives:
        with unpacked([archive]) as found:
            for entry in group_trials(read_runs(found.folders)):
                published = find_published(entry.settings)
                if published is not None and any(run.evaluations for run in entry.counted):
                    yield _row(entry, published)


def _row(entry: Entry, published: Published) -> ResultRow:
    tests = [{test.attack: test.accuracy for test in run.evaluations} for run in entry.counted]
    ours = {attack: found for attack in ATTACKS if (found := spread([test.get(attack) for test in tests])) is not None}
    box = ", pixel box" if entry.settings["bounds"] != "none" else ""
    data, epochs = TITLES[str(entry.settings["data"])], entry.settings["epochs"]
    trained = f"{epochs} of {published.recipe['epochs']} epochs"
    label = f"{data}, {published.name}: {trained}, {len(tests)} seed{'s' * (len(tests) > 1)}{box}"
    return ResultRow(label, look(entry.method).colour, ours, dict(published.final))


def draw(rows: list[ResultRow]) -> Figure:
    """Draw one panel per attack; call it inside `figure_style()`."""
    figure = Figure(figsize=(9.6, 0.9 + ROW * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(ATTACKS), sharey=True)
    for attack, axes in zip(ATTACKS, panels, strict=True):
        for height, row in enumerate(rows):
            _draw_row(axes, height, row.ours.get(attack), row.theirs.get(attack), row.color)
        axes.set(title=f"{attack}, %", xlim=(0, 100), ylim=(len(rows) - 0.4, -0.6))
        axes.grid(visible=True, axis="x", color=FAINT, linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(rows)), [row.label for row in rows])
    marks = [
        *panels[0].plot([], [], "o", color=QUIET, markersize=6, label="this project"),
        *panels[0].plot([], [], "o", color=INK, markersize=6, markerfacecolor="none", label="the paper"),
    ]
    figure.legend(handles=marks, loc="outside lower right", ncols=2, frameon=False)
    return figure


def _draw_row(axes: Axes, height: int, ours: Spread | None, theirs: Spread | None, color: str) -> None:
    if ours is not None and theirs is not None:
        axes.plot([100 * ours.mean, 100 * theirs.mean], [height, height], color=color, linewidth=1, alpha=0.4)
    for found, fill, edge in ((theirs, "white", INK), (ours, color, color)):
        if found is not None:
            bar = 100 * (found.deviation or 0)
            axes.errorbar(
                *(100 * found.mean, height),
                xerr=bar or None,
                fmt="o",
                markersize=6,
                color=edge,
                markerfacecolor=fill,
                elinewidth=1,
            )


def main() -> int:
    """Write the figure, as SVG and PNG."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results_figure", description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="the archives")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where reproduced.svg goes")
    parser.add_argument("--kinds", default="svg", metavar="A,B", help="svg, png or pdf (default: svg)")
    args = parser.parse_args()
    with figure_style():
        for path in save_figure(draw([*read_rows(args.results)]), args.out, "reproduced", args.kinds.split(",")):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
