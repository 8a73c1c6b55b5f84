"""Let a page explore a figure: which parts belong to which entry, and the values at points, as titles in the SVG."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

KEY = "entry-"  # begins the key of an entry; eight digits follow
MAX_POINTS = 60  # of a curve that show their values
RADIUS = "7"  # in points, around which a value shows


def entry_key(name: str) -> str:
    """Return the key by which a page shows or hides all that belongs to an entry or method of this name."""
    return f"{KEY}{crc32(name.encode(errors='surrogateescape')):08x}"


def mark_entry(name: str, *artists: Artist) -> None:
    """Mark parts of a figure as belonging to an entry."""
    for artist in artists:
        artist.set_gid(entry_key(name))


def number_marks(figure: Figure) -> None:
    """Give each marked part an id of its own, which begins with the key of its entry."""
    marked = figure.findobj(lambda artist: (artist.get_gid() or "").startswith(KEY))
    for i, artist in enumerate(marked):
        key = str(artist.get_gid())[: len(KEY) + 8]
        artist.set_gid(f"{key}-{i}")


def show_values(
    axes: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str], entry: str, *, most: int = MAX_POINTS
) -> None:
    """Show a text where the pointer is over a point, in the SVG only; of a long curve, at `most` points."""
    points = np.column_stack([np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)])
    rows = np.unique(np.linspace(0, len(points) - 1, min(len(points), most)).round().astype(int))
    rows = rows[np.isfinite(points[rows]).all(axis=1)] if len(points) else rows
    axes.add_artist(_Values(points[rows], [texts[row] for row in rows], entry))


class _Values(Artist):
    """Invisible circles with titles, which browsers show as tooltips."""

    def __init__(self, points: np.ndarray[Any, np.dtype[np.float64]], texts: Sequence[str], entry: str) -> None:
        super().__init__()
        self.points, self.texts, self.entry = points, texts, entry
        self.set_in_layout(False)
        self.set_zorder(20)

    def draw(self, renderer: Any) -> None:
        """Write the circles, if what is drawn is an SVG."""
        writer = getattr(renderer, "writer", None)
        if writer is None or not len(self.points):
            return
        owner = {"data-entry": entry_key(self.entry)} if self.entry else {}
        writer.start("g", {"class": "values", "fill-opacity": "0", **owner})
        for (x, y), text in zip(self.get_transform().transform(self.points), self.texts, strict=True):
            circle = {"cx": f"{x:.1f}", "cy": f"{renderer.height - y:.1f}", "r": RADIUS}
            writer.start("circle", circle)
            writer.element("title", text)
            writer.end("circle")
        writer.end("g")
