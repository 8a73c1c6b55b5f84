"""How figures look and how they are saved: the same input gives the same bytes."""

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

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


class Look(NamedTuple):
    """The colour and the marker of a method, the same in every figure."""

    colour: str
    marker: str


# Okabe and Ito's palette, safe for colour-blind eyes; wine stands in for its yellow, which is too pale on white.
LOOKS = {
    "ssi-hg": Look("#0072b2", "o"),
    "dsi-hg": Look("#56b4e9", "s"),
    "spdhg": Look("#009e73", "D"),
    "gda": Look("#d55e00", "X"),
    "mgda": Look("#e69f00", "P"),
    "extragradient": Look("#cc79a7", "p"),
    "eg+": Look("#000000", "h"),
    "optimistic": Look("#882255", "d"),
}
OTHERS = (Look("#44aa99", "<"), Look("#999933", ">"), Look("#332288", "8"), Look("#aa4499", "H"))
# Methods of training share the palette: they never meet those above in a figure.
TRAINING = {
    "msi-hg": LOOKS["ssi-hg"],
    "dat": LOOKS["dsi-hg"],
    "free": LOOKS["spdhg"],
    "pgd": LOOKS["gda"],
    "fast": LOOKS["mgda"],
    "fgsm": LOOKS["extragradient"],
    "natural": LOOKS["eg+"],
    "yopo": LOOKS["optimistic"],
    "trades": OTHERS[1],
    "ibp": OTHERS[2],
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


def look(method: str) -> Look:
    """The look of a method, by its name alone."""
    return LOOKS.get(method) or TRAINING.get(method) or OTHERS[crc32(method.encode()) % len(OTHERS)]


def looks(methods: Sequence[str]) -> list[Look]:
    """A look for each of several runs: its method's, or where another run has that already, one that is still free.

    Beyond one run a colour, colours come again with other markers.
    """
    palette = [*LOOKS.values(), *OTHERS]
    firsts = {method: methods.index(method) for method in methods}
    chosen: dict[int, Look] = {}
    for method, i in firsts.items():
        if look(method) not in chosen.values():
            chosen[i] = look(method)
    for i in (i for i in range(len(methods)) if i not in chosen):
        turn, place = divmod(len(chosen), len(palette))
        unused = [one for one in palette if one not in chosen.values()]
        again = Look(palette[place].colour, palette[(place + turn) % len(palette)].marker)
        chosen[i] = unused[0] if unused else again
    return [chosen[i] for i in range(len(methods))]


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
