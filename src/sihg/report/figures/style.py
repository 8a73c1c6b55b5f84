"""Set the look of figures, write names and numbers at their edges, and save them: same input, same bytes."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import EngFormatter, FuncFormatter, LogFormatterSciNotation, NullFormatter

from sihg.report.figures.interactive import mark_entry, number_marks
from sihg.report.read.palette import Look
from sihg.store.files import write_bytes

INK, QUIET, FAINT, GRID = "#1f2328", "#6e7781", "#d0d7de", "#eaeef2"
DOTS_PER_INCH = 200
LINE = 0.165  # inches between the baselines of two names
LONGEST_NAME = 17  # letters
UNDATED: dict[str, dict[str, None]] = {  # leave out what changes from day to day
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply page.mplstyle while figures are made and saved."""
    with matplotlib.style.context(["default", "sihg.report.figures.page"]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # names in scripts without glyphs
        yield


def save_figure(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write a figure as NAME.svg and so on; call it inside `figure_style()`, as the drawing."""
    number_marks(figure)
    written = []
    for kind in kinds:
        figure.savefig(data := BytesIO(), format=kind, dpi=DOTS_PER_INCH, metadata=UNDATED[kind])
        written.append(write_bytes(folder / f"{name}.{kind}", data.getvalue()))
    return written


def fit_text(text: str, longest: int = 60) -> str:
    """Make text printable and cut it after `longest` letters."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def fit_name(name: str, longest: int = LONGEST_NAME) -> str:
    """Shorten a name in its middle: runs often differ at the end."""
    half = longest // 2
    return fit_text(name if len(name) <= longest else f"{name[:half]}…{name[-half:]}")


def show_plain_text(legend: Legend) -> None:
    """Show names such as $x$ as they are, not as formulas."""
    for text in legend.get_texts():
        text.set_parse_math(False)


class CurveName(NamedTuple):
    """A name to write next to a curve: where the curve ends (0 bottom, 1 top), whether there is one, and whose."""

    text: str
    look: Look
    height: float
    has_curve: bool
    entry: str


def name_curves(axes: Axes, names: Sequence[CurveName]) -> None:
    """Write names to the right of the axes, from bottom to top, near the ends of their curves."""
    inches = axes.get_window_extent().height / axes.figure.dpi
    heights = move_apart([name.height for name in names], LINE / inches)
    place = axes.transAxes
    for (text, look, _, has_curve, entry), y in zip(names, heights, strict=True):
        fill: Literal["full", "none"] = "full" if has_curve else "none"
        (sign,) = axes.plot(1.05, y, look.marker, color=look.colour, fillstyle=fill, markersize=5.5, transform=place)
        sign.set_clip_on(False)
        ink = INK if has_curve else QUIET
        name = axes.text(1.085, y, text, color=ink, va="center_baseline", parse_math=False, transform=place)
        mark_entry(entry, sign, name)


def move_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return the nearest heights that keep the (ascending) order and the gap, within 0 and 1 if there is room."""
    stacks: list[list[float]] = []  # a stack has no gaps to spare; its members say where they want its foot
    for i, height in enumerate(heights):
        stacks.append([height - i * gap])
        while len(stacks) > 1 and np.mean(stacks[-2]) >= np.mean(stacks[-1]):
            upper = stacks.pop()
            stacks[-1] += upper
    feet = [float(np.mean(stack)) for stack in stacks for _ in stack]
    highest = 1 - (len(heights) - 1) * gap
    return [max(min(foot, highest), 0.0) + i * gap for i, foot in enumerate(feet)]


def thousands_formatter() -> FuncFormatter:
    """Number an axis with 20k and 0.5; matplotlib alone would write 500m."""
    thousands = EngFormatter(sep="")
    return FuncFormatter(lambda x, _: thousands(x) if x >= 1000 else f"{x:g}")


class _PlainNumbers(LogFormatterSciNotation):
    """Number the ticks that begin with 1, 2 or 5 and that matplotlib would number: others collide."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = f"{x:,.10g}" if super().__call__(x, pos) else ""
        return text if text.lstrip("0.").startswith(("1", "2", "5")) else ""


def number_log_axis(axis: Axis, *, numbered: bool) -> None:
    """Number a logarithmic axis: with plain numbers if they are short, otherwise with powers of ten."""
    low, high = axis.get_view_interval()
    kind = _PlainNumbers if low >= 0.9e-3 and high < 1e6 else LogFormatterSciNotation
    axis.set_major_formatter(kind() if numbered else NullFormatter())
    axis.set_minor_formatter(kind(minor_thresholds=(1, 0.4)) if numbered else NullFormatter())
