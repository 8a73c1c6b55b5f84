"""Draw performance profiles: the share of tasks that each method solves within a factor of the best cost."""

from collections.abc import Sequence
from math import inf

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from sihg.report.figures.style import FAINT, INK, QUIET, fit_name
from sihg.report.read.evaluations import Floats
from sihg.store.profile_records import SolverProfile

LARGEST = 64.0  # factor at the right edge
COLUMNS = 4
SIDE, GAP, LEFT, BOTTOM, RIGHT, TOP = 1.75, 0.42, 0.85, 0.95, 0.2, 0.32  # inches
BETWEEN = 0.26  # inches from panel to panel in a row
SOLID, DASHED = "#0072b2", "#d55e00"
TICKS = (1, 2, 4, 8, 16, 32, 64)


def profile_curves(found: SolverProfile) -> Figure:
    """Draw one panel per method, over the curves of all others; both rules for its steps share a panel."""
    curves = {method: _curve(found, method) for method in found.methods}
    panels: dict[str, list[str]] = {}
    for method in found.methods:
        panels.setdefault(method.partition("@")[0], []).append(method)
    order = sorted(panels, key=lambda name: [-max(found.share(m, t) for m in panels[name]) for t in (2.0, inf)])
    columns = min(COLUMNS, len(order))
    rows = -(-len(order) // columns)
    width = LEFT + columns * SIDE + (columns - 1) * BETWEEN + RIGHT
    height = BOTTOM + rows * SIDE + (rows - 1) * GAP + TOP
    figure = Figure(figsize=(max(width, 4.2), height))
    width = max(width, 4.2)
    for place, name in enumerate(order):
        row, column = divmod(place, columns)
        left = LEFT + column * (SIDE + BETWEEN)
        bottom = BOTTOM + (rows - 1 - row) * (SIDE + GAP)
        axes = figure.add_axes((left / width, bottom / height, SIDE / width, SIDE / height), xscale="log")
        _panel(axes, curves, panels[name], name)
        axes.tick_params(labelleft=column == 0, labelbottom=place + columns >= len(order))
    figure.text(0.5, 0.58 / height, "cost, as a multiple of the best method's", ha="center", va="center")
    figure.text(0.14 / width, 0.5, "share of tasks solved", rotation="vertical", ha="center", va="center")
    _legend(figure, height, with_rules=any("@" in method for method in found.methods))
    return figure


def _curve(found: SolverProfile, method: str) -> tuple[Floats, Floats]:
    """Return the corners of a step function, from factor 1 on."""
    ratios = np.array(found.ratios(method), dtype=np.float64)
    at = np.unique(np.append(ratios[ratios <= LARGEST], [1.0, LARGEST]))
    return at, np.array([(ratios <= factor).mean() for factor in at])


def _panel(axes: Axes, curves: dict[str, tuple[Floats, Floats]], own: Sequence[str], name: str) -> None:
    for method, curve in curves.items():
        if method not in own:
            axes.step(*curve, where="post", color=FAINT, linewidth=0.7, zorder=1)
    for method in own:
        rule = method.partition("@")[2]
        axes.step(
            *curves[method],
            where="post",
            color=DASHED if rule else SOLID,
            linestyle=(0, (4, 1.6)) if rule else "-",
            linewidth=1.8,
            zorder=3 if rule else 2,
        )
    axes.set(xlim=(1, LARGEST), ylim=(0, 1.02))
    axes.set_title(fit_name(name, 22), fontsize=9, color=INK, pad=4, parse_math=False)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if x in (1, 4, 16, 64) else ""))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.axvline(2, color=QUIET, linewidth=0.6, linestyle=":", zorder=0)
    axes.grid(visible=True, axis="y")


def _legend(figure: Figure, height: float, *, with_rules: bool) -> None:
    handles = [Line2D([], [], color=SOLID, linewidth=1.8, label="default steps" if with_rules else "the method")]
    if with_rules:
        handles.append(Line2D([], [], color=DASHED, linewidth=1.8, linestyle=(0, (4, 1.6)), label="adaptive steps"))
    handles += [
        Line2D([], [], color=FAINT, linewidth=1, label="all others"),
        Line2D([], [], color=QUIET, linewidth=0.8, linestyle=":", label="factor 2"),
    ]
    figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0.06 / height), ncols=4, frameon=False)
