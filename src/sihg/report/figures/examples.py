"""Draw one sample per class, the perturbation that an attack found, and the attacked sample."""

from typing import Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from sihg.report.figures.style import INK, QUIET, fit_text
from sihg.report.read.evaluations import Floats, Gallery

PER_ROW = 5  # samples
WIDTH, LEFT, TEXT, EDGE = 4.8, 0.95, 0.2, 0.03  # inches: the figure, before the images, a line of text, around an image
WRONG = "#b42318"


def gallery_figure(gallery: Gallery) -> Figure:
    """Draw a gallery, one column per class. All lengths are in inches."""
    n = len(gallery.label)
    across = min(n, PER_ROW)
    side = min((WIDTH - LEFT) / across, 0.9)
    tall = side * gallery.clean.shape[1] / gallery.clean.shape[2]
    block = 3 * tall + 3 * TEXT + 0.15
    height = block * -(-n // across)
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.set_axis_off()
    for i in range(n):
        row, column = divmod(i, across)
        left, top = LEFT + column * side, height - row * block - TEXT
        middle, lines = left + side / 2, [top - tall - TEXT / 2, top - 3 * tall - 1.5 * TEXT]
        feet = [top - tall, top - 2 * tall - TEXT, top - 3 * tall - TEXT]
        label, before, after = (int(labels[i]) for labels in (gallery.label, gallery.before, gallery.after))
        _write(axes, middle, top + TEXT / 2, _class_name(gallery, label)).set_fontweight("bold")
        pictures = (gallery.clean[i], _tinted(gallery, i), gallery.adversarial[i])
        for part, (picture, foot) in enumerate(zip(pictures, feet, strict=True)):
            shades = np.clip(picture if picture.shape[-1] == 3 else np.repeat(picture, 3, axis=-1), 0, 1)
            extent = (left + EDGE, left + side - EDGE, foot + EDGE, foot + tall - EDGE)
            axes.imshow(shades, interpolation="none", aspect="auto", extent=extent, gid=f"picture_{i}_{part}")
        for prediction, y in zip((before, after), lines, strict=True):
            _write(axes, middle, y, _class_name(gallery, prediction), color=INK if prediction == label else WRONG)
        if column == 0:
            for text, foot in zip(("image", "perturbation", "attacked"), feet, strict=True):
                _write(axes, LEFT - 0.08, foot + tall / 2, text, ha="right", color=QUIET)
            for text, y in zip(("label", "predicted", "predicted"), (top + TEXT / 2, *lines), strict=True):
                _write(axes, LEFT - 0.08, y, text, ha="right", color=QUIET)
    axes.set(xlim=(0, WIDTH), ylim=(0, height))  # imshow changes the limits
    return figure


def _tinted(gallery: Gallery, i: int) -> Floats:
    """Colour a perturbation: white or grey at zero, the same strength for both signs."""
    delta = gallery.adversarial[i] - gallery.clean[i]
    largest = max(float(np.abs(gallery.adversarial - gallery.clean).max()), 1e-12)
    if delta.shape[-1] == 3:
        return np.asarray(0.5 + delta / (2 * largest))
    return np.asarray(colormaps["RdBu_r"](0.5 + delta[..., 0] / (2 * largest))[..., :3])


def _class_name(gallery: Gallery, label: int) -> str:
    """Return the name of a class, or its number if it has no name."""
    return fit_text(gallery.classes[label] if 0 <= label < len(gallery.classes) else str(label), 11)


def _write(
    axes: Axes, x: float, y: float, text: str, color: str = INK, ha: Literal["center", "right"] = "center"
) -> Text:
    return axes.text(x, y, text, parse_math=False, ha=ha, va="center", fontsize=8, color=color)
