"""A sample of each class as it is, what an attack adds to it, and what the model then sees."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.report.figures.style import INK, QUIET, shown
from sihg.report.read.entries import Entry
from sihg.report.read.npz_arrays import read_arrays
from sihg.report.read.solves import Array

ARRAYS = ("label", "before", "after", "clean", "adversarial")
ROW = 5  # samples beside each other
WIDTH, LEFT, TEXT, EDGE = 4.8, 0.95, 0.2, 0.03  # inches: the figure, before the images, a line of text, around an image
WRONG = "#b42318"


@dataclass(frozen=True, eq=False)
class Gallery:
    """Samples, one a class, before and after an attack."""

    run: str
    attack: str
    checkpoint: str
    ball: str
    classes: tuple[str, ...]
    label: NDArray[np.int64]
    before: NDArray[np.int64]  # predictions
    after: NDArray[np.int64]
    clean: Array  # (n, height, width, channels) in [0, 1]
    adversarial: Array


def galleries(entry: Entry) -> list[Gallery]:
    """The gallery of the entry's first trial that has one."""
    with_one = [run for run in entry.counted if run.folder.gallery.is_file()]
    return [read_gallery(run.folder.gallery, run.name) for run in with_one[:1]]


def read_gallery(source: Path, run: str) -> Gallery:
    """Read the gallery that `sihg evaluate` left."""
    found = read_arrays(source, ("about", *ARRAYS))
    try:
        about: dict[str, Any] = json.loads(str(found["about"]))
        label, before, after = (found[name].astype(np.int64) for name in ARRAYS[:3])
        clean, adversarial = (np.moveaxis(found[name].astype(np.float64), 1, -1) for name in ARRAYS[3:])
        classes = tuple(str(name) for name in about["classes"])
        if not clean.shape == adversarial.shape == (len(label), *clean.shape[1:3], 3 if clean.shape[-1] == 3 else 1):
            raise ValueError(f"its images are of {clean.shape}")
        if not len(label) == len(before) == len(after) or max(label, default=0) >= len(classes):
            raise ValueError("its labels do not fit")
        ball = f"{about['norm']}, ε = {float(about['eps']):.4g}"
        names = (run, str(about["attack"]), str(about["checkpoint"]), ball, classes)
        return Gallery(*names, label, before, after, clean, adversarial)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{source} is no gallery ({error}): evaluate the run again, or take it away") from error


def gallery_figure(gallery: Gallery) -> Figure:
    """Draw it: a column a class. All measures are inches."""
    n = len(gallery.label)
    across = min(n, ROW)
    side = min((WIDTH - LEFT) / across, 0.9)
    tall = side * gallery.clean.shape[1] / gallery.clean.shape[2]
    block = 3 * tall + 3 * TEXT + 0.15
    height = block * -(-n // across)
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.set_axis_off()
    for i in range(n):
        below, beside = divmod(i, across)
        left, top = LEFT + beside * side, height - below * block - TEXT
        middle, read = left + side / 2, [top - tall - TEXT / 2, top - 3 * tall - 1.5 * TEXT]
        feet = [top - tall, top - 2 * tall - TEXT, top - 3 * tall - TEXT]
        label, before, after = (int(some[i]) for some in (gallery.label, gallery.before, gallery.after))
        _write(axes, middle, top + TEXT / 2, _called(gallery, label), weight="bold")
        pictures = (gallery.clean[i], _tinted(gallery, i), gallery.adversarial[i])
        for part, (picture, foot) in enumerate(zip(pictures, feet, strict=True)):
            shades = np.clip(picture if picture.shape[-1] == 3 else np.repeat(picture, 3, axis=-1), 0, 1)
            extent = (left + EDGE, left + side - EDGE, foot + EDGE, foot + tall - EDGE)
            axes.imshow(shades, interpolation="none", aspect="auto", extent=extent, gid=f"picture_{i}_{part}")
        for prediction, y in zip((before, after), read, strict=True):
            _write(axes, middle, y, _called(gallery, prediction), color=INK if prediction == label else WRONG)
        if beside == 0:
            for text, foot in zip(("image", "perturbation", "attacked"), feet, strict=True):
                _write(axes, LEFT - 0.08, foot + tall / 2, text, ha="right", color=QUIET)
            for y in read:
                _write(axes, LEFT - 0.08, y, "read as", ha="right", color=QUIET)
    axes.set(xlim=(0, WIDTH), ylim=(0, height))  # which images change
    return figure


def _tinted(gallery: Gallery, i: int) -> Array:
    """A perturbation in colours that are white or grey at zero, the same strength for both signs."""
    delta = gallery.adversarial[i] - gallery.clean[i]
    most = max(float(np.abs(gallery.adversarial - gallery.clean).max()), 1e-12)
    if delta.shape[-1] == 3:
        return np.asarray(0.5 + delta / (2 * most))
    return np.asarray(colormaps["RdBu_r"](0.5 + delta[..., 0] / (2 * most))[..., :3])


def _called(gallery: Gallery, label: int) -> str:
    """The name of a class, or its number where it has none."""
    return shown(gallery.classes[label] if 0 <= label < len(gallery.classes) else str(label), 11)


def _write(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    axes.text(x, y, text, parse_math=False, **{"ha": "center", "va": "center", "fontsize": 8, **how})
