"""Give each method and run a colour and a marker, the same in every figure and table."""

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32


class Look(NamedTuple):
    """The colour and the marker of a method, the same in every figure."""

    colour: str
    marker: str


# Okabe and Ito's palette, safe for colour-blind eyes; wine stands in for its yellow, which is too pale on white,
# and the ink of the page for its black.
LOOKS = {
    "ssi-hg": Look("#0072b2", "o"),
    "dsi-hg": Look("#56b4e9", "s"),
    "spdhg": Look("#009e73", "D"),
    "gda": Look("#d55e00", "X"),
    "mgda": Look("#e69f00", "P"),
    "extragradient": Look("#cc79a7", "p"),
    "eg+": Look("#1f2328", "h"),
    "optimistic": Look("#882255", "d"),
}
OTHERS = (Look("#44aa99", "<"), Look("#999933", ">"), Look("#332288", "8"), Look("#aa4499", "H"))
# Further methods of solving: colours of a related method with other markers.
VARIANTS = {
    "adaptive-eg+": Look("#1f2328", "^"),
    "curvature-eg+": Look("#1f2328", "v"),
    "inexact-ppm": Look("#0072b2", "^"),
    "ogda+": Look("#882255", "v"),
    "feg": Look("#cc79a7", "^"),
    "ds-gda": Look("#d55e00", "^"),
    "altgda": Look("#d55e00", "v"),
    "spdhg-importance": Look("#009e73", "^"),
    "spdhg-balanced": Look("#009e73", "v"),
}
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
    "atta": OTHERS[0],
    "trades": OTHERS[1],
    "ibp": OTHERS[2],
    "fgsm-pgi": OTHERS[3],
    "n-fgsm": Look("#117733", "^"),
    "mart": Look("#888888", "v"),
}


# Colours that are too dark, or too bright, on a dark page, and what takes their place there; its ink changes by itself.
DARK = {
    "#0072b2": "#5b8def",
    "#009e73": "#2bbf93",
    "#d55e00": "#f0803c",
    "#882255": "#d870a5",
    "#332288": "#9a8cf0",
    "#aa4499": "#d980cb",
    "#117733": "#4fb872",
    "#999933": "#bdbd57",
    "#b42318": "#ff8577",  # of wrong predictions
    "#c4ccd4": "#46505b",  # of the arrows of a field, which are not to stand out
}


def look(method: str) -> Look:
    """Return the colour and marker of a method, by its name alone; those of METHOD@RULE differ in the marker."""
    method, at, _ = method.partition("@")
    if at:
        return Look(look(method).colour, "*")
    return (
        LOOKS.get(method)
        or VARIANTS.get(method)
        or TRAINING.get(method)
        or OTHERS[crc32(method.encode()) % len(OTHERS)]
    )


def looks(methods: Sequence[str]) -> list[Look]:
    """Return a look per run: that of its method, or an unused one if an earlier run has it.

    When all colours are used, they repeat with other markers.
    """
    palette = [*LOOKS.values(), *OTHERS]
    firsts = {method: methods.index(method) for method in methods}
    chosen: dict[int, Look] = {}
    for method, i in firsts.items():
        if look(method) not in chosen.values():
            chosen[i] = look(method)
    for i in (i for i in range(len(methods)) if i not in chosen):
        turn, place = divmod(len(chosen), len(palette))
        unused = [free for free in palette if free not in chosen.values()]
        repeated = Look(palette[place].colour, palette[(place + turn) % len(palette)].marker)
        chosen[i] = unused[0] if unused else repeated
    return [chosen[i] for i in range(len(methods))]
