"""Fill the templates of report pages with tables, figures and warnings; all text from outside is escaped."""

import base64
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import msgspec
from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sihg.report.read.evaluations import ALL, PROVEN, Evaluation, Remark
from sihg.report.tables.table import Cell, Table, for_reading
from sihg.store.schema import Environment
from sihg.store.statistics import Spread, group_similar

LARGEST_SVG = 1_500_000  # bytes; a larger figure is put in as PNG
LONG_TEXT, LONG_NAME = 16, 26  # letters; a column with a longer text, or a longer name of a row, may wrap it


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


class PageWarning(NamedTuple):
    """A warning, the names of what it is about, and which checks of which records gave it."""

    names: Sequence[str]
    text: str
    origins: Sequence[str]


class PageCell(NamedTuple):
    """A cell or heading: its text, its value for programs (may be empty) and its CSS class."""

    text: str | Markup
    value: str
    kind: str


class PageRow(NamedTuple):
    """A row: its colour is "" for no mark, and None for a row of published results."""

    name: Markup
    colour: str | None
    cells: Sequence[PageCell]


class PageTable(NamedTuple):
    """A table whose rows are named by their first cell."""

    caption: str
    headings: Sequence[PageCell]
    rows: Sequence[PageRow]


def render(template: str, **content: object) -> str:
    """Return the page that a template gives with this content."""
    page = _templates().get_template(template).render(content)
    return page.encode(errors="backslashreplace").decode()  # file names may contain bytes that are not text


@cache
def _templates() -> Templates:
    templates = Templates(
        loader=PackageLoader("sihg.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = files("sihg.report.page").joinpath("page.css").read_text(encoding="utf-8")
    templates.globals |= {"css": Markup(css), "image": _image, "refresh": None}  # our own file, not text from outside
    return templates


def page_table(
    table: Table, caption: str, colours: Sequence[str | None], shown: Table | None = None
) -> PageTable | None:
    """Prepare a table for the page; None if it has no rows. `shown` has its texts (default: `for_reading`)."""
    if not table.rows:
        return None
    if shown is None:
        shown = for_reading(table)
        table = table.part(*(column.key for column in shown.columns))
    kinds = [_kind(table, i) for i in range(len(table.columns))]
    headings = [
        PageCell(column.heading.replace("-", "\N{NON-BREAKING HYPHEN}"), "", kind)
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    rows = []
    for row, texts, colour in zip(table.rows, shown.rows, colours, strict=True):
        cells = [
            PageCell(_number_text(str(text)) if kind == "number" else str(text), _value(cell), kind)
            for cell, text, kind in zip(row, texts, kinds, strict=True)
        ]
        rows.append(PageRow(_breakable(str(row[0])), colour, cells[1:]))
    return PageTable(caption, headings, rows)


def page_warnings(remarks: Sequence[tuple[str, Remark]]) -> list[PageWarning]:
    """Group warnings, given with the name of what they are about, that differ only in numbers."""
    origins: dict[tuple[str, str], dict[str, None]] = {}
    for name, (text, check, record) in remarks:
        parts = [f"check “{check}”"] if check else []
        parts += [f"evaluation {record}"] if record not in ("", name) else []
        origins.setdefault((name, text), {}).update(dict.fromkeys(parts))
    found = []
    for group in group_similar(origins):
        name, text = next(iter(group.items()))
        more = "" if len(set(group.values())) == 1 else f" ({name}; the others have other numbers)"
        every = dict.fromkeys(part for pair in group.items() for part in origins[pair])
        found.append(PageWarning(list(group), text + more, list(every)))
    return found


def figure_parts(figures: Sequence[DrawnFigure], page: str) -> list[FigurePart]:
    """Put figures under the headings of their parts of a page."""
    parts = _texts().pages[page]
    found = {name: [figure for figure in figures if figure.part == name] for name in parts}
    return [msgspec.structs.replace(parts[name], figures=of_part) for name, of_part in found.items() if of_part]


def caption_of(figure: str, sentences: Sequence[str] = (), **values: object) -> tuple[str, str, str]:
    """Return a figure's heading, its caption with further sentences, and its part of the page; fill in the values."""
    text = _texts().figures[figure]
    caption = " ".join([text.caption.format(**values), *(_texts().sentences[name] for name in sentences)])
    return text.heading.format(**values), caption, text.part


@cache
def _texts() -> _Texts:
    content = files("sihg.report.page").joinpath("captions.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(content, type=_Texts)


def evaluation_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Explain the rows of evaluations that are not attacks, and those of targeted ones."""
    notes = []
    if any(evaluation.target for evaluation in evaluations):
        notes.append("targeted: the share of samples that are not turned into the target, which is no accuracy.")
    if any(evaluation.attack == ALL for evaluation in evaluations):
        notes.append("all: the samples that no attack breaks.")
    if any(evaluation.rule == PROVEN for evaluation in evaluations):
        notes.append("proven: a lower bound; no attack within the ball breaks more. Attacks give upper bounds.")
    return notes


def environment_texts(environments: Sequence[Environment]) -> dict[str, str]:
    """List what results were made with; several values where they differ."""
    values: dict[str, dict[str, None]] = {}
    for environment in environments:
        for name, value in msgspec.to_builtins(environment).items():
            values.setdefault(name, {})[str(value)] = None
    return {name: " / ".join(texts) for name, texts in values.items()}


def _kind(table: Table, i: int) -> str:
    if i and not table.columns[i].is_text:
        return "number"
    longest = LONG_TEXT if i else LONG_NAME
    return "text" if any(len(str(row[i])) > longest for row in table.rows) else ""


def _value(cell: Cell) -> str:
    number = cell.mean if isinstance(cell, Spread) else cell
    return repr(number) if isinstance(number, int | float) else ""


def _breakable(name: str) -> Markup:
    """Let a long name wrap after `_` and `+`."""
    return Markup(re.sub("([_+])", r"\1<wbr>", str(escape(name)))) if len(name) > LONG_NAME else escape(name)


def _number_text(text: str) -> str | Markup:
    """Write 1.5e-09 as a power of ten; put what is in brackets behind a number below it."""
    number, bracket, rest = text.partition(" (")
    if bracket:
        return Markup('{} <span class="quiet">({}</span>').format(number, rest)
    power = re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", text)
    if power is None:
        return text
    exponent = str(int(power[2])).replace("-", "\N{MINUS SIGN}")
    return Markup("{} &times; 10<sup>{}</sup>").format(power[1], exponent)


def _image(figure: DrawnFigure) -> Markup:
    """Return the SVG, with ids of its own among the others on the page, or the PNG if the SVG is huge."""
    if figure.svg.stat().st_size > LARGEST_SVG and figure.other.suffix == ".png":
        data = base64.b64encode(figure.other.read_bytes()).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(figure.heading, data)
    svg = figure.svg.read_text(encoding="utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{figure.svg.stem}_", svg)
    opening = f'<svg role="img" aria-label="{escape(figure.heading)}"'
    return Markup(svg.strip().replace("<svg", opening, 1))  # drawn by us
