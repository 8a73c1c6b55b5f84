"""Fewer points that look the same, so that figures of long runs stay small."""

from math import isnan

import numpy as np
from numpy.typing import NDArray

from sihg.report.read.solves import Array


def thinned(x: Array, y: Array, columns: int = 500) -> NDArray[np.intp]:
    """The rows to draw of a long curve over a logarithmic axis: the ends and extremes within each of its columns."""
    rows = np.arange(len(x))
    if len(x) <= 4 * columns:
        return rows
    column = np.floor(columns * np.log(x / x[0]) / np.log(x[-1] / x[0]))
    kept: set[int] = set()
    for part in np.split(rows, np.flatnonzero(np.diff(column)) + 1):
        kept |= {part[0], part[np.argmin(y[part])], part[np.argmax(y[part])], part[-1]}
    return np.array(sorted(kept), dtype=np.intp)


def spaced(path: Array, gap: float) -> NDArray[np.intp]:
    """The points to draw of a path: each at least `gap` from the one before, one of a row of nans, and the last."""
    kept = [0] if len(path) else []
    points = path.tolist()  # much faster to walk through than an array
    x0, y0 = points[0] if points else (0.0, 0.0)
    for i, (x, y) in enumerate(points):
        if isnan(x + y) != isnan(x0 + y0) or abs(x - x0) >= gap or abs(y - y0) >= gap:
            kept.append(i)
            x0, y0 = x, y
    if kept and kept[-1] != len(path) - 1:
        kept.append(len(path) - 1)
    return np.array(kept, dtype=np.intp)
