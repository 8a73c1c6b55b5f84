"""Names beside the curves they belong to, and numbers on logarithmic axes."""

from collections.abc import Sequence
from math import log10
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogFormatterSciNotation, NullFormatter

from sihg.report.figures.style import INK, QUIET, shown
from sihg.report.read.palette import look

LINE = 0.165  # inches between the baselines of two names


def name_curves(axes: Axes, ends: Sequence[tuple[str, float | None]]) -> None:
    """Write the methods' names beside logarithmic axes, near where their curves end (None: there is no curve)."""
    bottom, top = axes.get_ylim()
    inches = axes.get_window_extent().height / axes.figure.dpi

    def height(end: float | None) -> float:
        return log10(min(max(end or 0.0, bottom), top) / bottom) / log10(top / bottom)

    # Curves that leave at the same edge are sorted by the values they go on to.
    ordered = sorted(ends, key=lambda pair: (height(pair[1]), pair[1] or 0.0))
    heights = apart([height(end) for _, end in ordered], LINE / inches)
    for (method, end), y in zip(ordered, heights, strict=True):
        colour, marker = look(method)
        fill: Literal["full", "none"] = "none" if end is None else "full"
        at: dict[str, Any] = {"transform": axes.transAxes}
        axes.plot(1.05, y, marker, color=colour, fillstyle=fill, markersize=5.5, clip_on=False, **at)
        ink = QUIET if end is None else INK
        axes.text(1.085, y, shown(method, 13), color=ink, va="center_baseline", parse_math=False, **at)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The heights nearest to these (ascending) that keep order and gap, within 0 and 1 while there is room."""
    stacks: list[list[float]] = []  # a stack stands without gaps; its members say where they want its foot
    for i, height in enumerate(heights):
        stacks.append([height - i * gap])
        while len(stacks) > 1 and np.mean(stacks[-2]) >= np.mean(stacks[-1]):
            upper = stacks.pop()
            stacks[-1] += upper
    feet = [float(np.mean(stack)) for stack in stacks for _ in stack]
    highest = 1 - (len(heights) - 1) * gap
    return [max(min(foot, highest), 0.0) + i * gap for i, foot in enumerate(feet)]


class _Plain(LogFormatterSciNotation):
    """Plain numbers at the ticks that matplotlib would number and that begin with 1, 2 or 5: others collide."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = f"{x:,.10g}" if super().__call__(x, pos) else ""
        return text if text.lstrip("0.").startswith(("1", "2", "5")) else ""


def number(axis: Axis, numbered: bool) -> None:
    """Number a logarithmic axis: plainly where the numbers are short, else as powers of ten."""
    low, high = axis.get_view_interval()
    kind = _Plain if low >= 0.9e-3 and high < 1e6 else LogFormatterSciNotation
    axis.set_major_formatter(kind() if numbered else NullFormatter())
    axis.set_minor_formatter(kind(minor_thresholds=(1, 0.4)) if numbered else NullFormatter())
