"""Put figures into a page: their captions, their parts of the page, and SVGs that follow its light or dark colours."""

import base64
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import msgspec
from markupsafe import Markup, escape

from sihg.report.figures.style import FAINT, GRID, INK, QUIET
from sihg.report.read.palette import DARK

LARGEST_SVG = 1_500_000  # bytes; a larger figure is put in as PNG
ROLES = {INK: "ink", QUIET: "quiet", FAINT: "line", GRID: "grid"}  # colours of figures, and of the page


class DrawnFigure(NamedTuple):
    """A figure on disk, as SVG and in another format, and what the page says about it."""

    svg: Path
    other: Path
    heading: str
    caption: str
    part: str = ""  # of the page


class FigurePart(msgspec.Struct):
    """Figures under one heading."""

    heading: str = ""
    notes: tuple[str, ...] = ()
    kind: str = ""  # a CSS class of the grid
    folded: bool = False  # shown only when asked for
    figures: Sequence[DrawnFigure] = ()


class _Caption(msgspec.Struct):
    heading: str
    caption: str
    part: str = ""  # of the page


class _Texts(msgspec.Struct):
    """The file captions.toml."""

    figures: dict[str, _Caption]
    sentences: dict[str, str]
    pages: dict[str, dict[str, FigurePart]]


def figure_parts(figures: Sequence[DrawnFigure], page: str) -> dict[str, FigurePart]:
    """Put figures under the headings of their parts of a page, by the names of the parts."""
    parts = _texts().pages[page]
    found = {name: [figure for figure in figures if figure.part == name] for name in parts}
    return {name: msgspec.structs.replace(parts[name], figures=of_part) for name, of_part in found.items() if of_part}


def caption_of(figure: str, sentences: Sequence[str] = (), **values: object) -> tuple[str, str, str]:
    """Return a figure's heading, its caption with further sentences, and its part of the page; fill in the values."""
    text = _texts().figures[figure]
    caption = " ".join([text.caption.format(**values), *(_texts().sentences[name] for name in sentences)])
    return text.heading.format(**values), caption, text.part


@cache
def _texts() -> _Texts:
    content = files("sihg.report.page").joinpath("captions.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(content, type=_Texts)


def image(figure: DrawnFigure) -> Markup:
    """Return the SVG, with ids of its own among the others on the page, or the PNG if the SVG is huge."""
    if figure.svg.stat().st_size > LARGEST_SVG and figure.other.suffix == ".png":
        data = base64.b64encode(figure.other.read_bytes()).decode()
        return Markup('<img class="paper" alt="{}" src="data:image/png;base64,{}">').format(figure.heading, data)
    svg = figure.svg.read_text(encoding="utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"\n\s*", "\n", svg)
    svg = svg.replace("#ffffff", "none", 1)  # the ground, which is drawn first
    svg = re.sub(r"#[0-9a-f]{6}\b", _themed, svg)
    svg = re.sub(r'\bid="(entry-[0-9a-f]{8})(-\d+)"', r'id="\1\2" data-entry="\1"', svg)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{figure.svg.stem}_", svg)
    opening = f'<svg role="img" aria-label="{escape(figure.heading)}"'
    return Markup(svg.strip().replace("<svg", opening, 1))  # drawn by us


def themed(colour: str) -> str:
    """Return a colour as a CSS value that changes with the scheme of the page, if it is one of ours."""
    if colour in ROLES:
        return f"var(--{ROLES[colour]})"
    return f"var(--on-dark-{colour[1:]}, {colour})" if colour in DARK else colour


def dark_colours() -> str:
    """Return the CSS variables by which figures change on a dark page."""
    return " ".join(f"--on-dark-{colour[1:]}: {lighter};" for colour, lighter in DARK.items())


def _themed(found: re.Match[str]) -> str:
    return themed(found[0])
