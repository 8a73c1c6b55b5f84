"""How figures look and how they are saved: the same input gives the same bytes."""

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import matplotlib.style
from matplotlib.figure import Figure

from sihg.store.files import write_bytes

INK, QUIET, FAINT = "#1f2328", "#6e7781", "#d0d7de"
DOTS_PER_INCH = 200
UNDATED: dict[str, dict[str, None]] = {  # what matplotlib would write that changes from day to day
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

SETTINGS = {
    "agg.path.chunksize": 5000,  # long paths are drawn in pieces, which spares memory
    "axes.axisbelow": True,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#eaeef2",
    "grid.linewidth": 0.7,
    "image.composite_image": False,  # each with its own pixels
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "sihg",
    "text.color": INK,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
}


def shown(text: str, most: int = 60) -> str:
    """Text from outside as a figure can show it: printable, and not too long."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def save(draw: Callable[[], Figure], folder: Path, name: str, kinds: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Draw a figure and write it as NAME.svg and so on."""
    with matplotlib.style.context(["default", SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # a name in a script without glyphs
        figure = draw()
        written = []
        for kind in kinds:
            figure.savefig(data := BytesIO(), format=kind, dpi=DOTS_PER_INCH, metadata=UNDATED[kind])
            written.append(write_bytes(folder / f"{name}.{kind}", data.getvalue()))
    return written
