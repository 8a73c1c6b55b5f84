"""Prepare tables for a page: texts, values to sort by, and the marks of entries."""

import re
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from markupsafe import Markup, escape

from sihg.report.figures.interactive import entry_key
from sihg.report.page.page_figures import themed
from sihg.report.tables.table import Cell, Table, for_reading
from sihg.store.statistics import Spread

LONG_TEXT, LONG_NAME = 16, 26  # letters; a column with a longer text, or a longer name of a row, may wrap it
SHORT_NAME = 12  # letters; longer names of rows may wrap on a phone
SHORT = {"passes": "passes", "seconds": "seconds", "epochs_asked": "of epochs"}  # headings that a caption explains


class PageCell(NamedTuple):
    """A cell or heading: its text, its value for programs (may be empty) and its CSS class."""

    text: str | Markup
    value: str
    kind: str


class PageRow(NamedTuple):
    """A row: its colour is "" for no mark, and None for a row of published results; `entry` is the key to hide it."""

    name: Markup
    colour: str | None
    entry: str
    cells: Sequence[PageCell]


class PageTable(NamedTuple):
    """A table whose rows are named by their first cell."""

    id: str
    caption: str
    headings: Sequence[PageCell]
    rows: Sequence[PageRow]


class Toggle(NamedTuple):
    """An entry that a page can hide: its name, colour and key."""

    name: str
    colour: str
    entry: str


def page_table(
    table: Table,
    caption: str,
    colours: Sequence[str | None],
    shown: Table | None = None,
    entries: Sequence[str] | None = None,
) -> PageTable | None:
    """Prepare a table for the page; None if it has no rows.

    Args:
        table: The table.
        caption: What it shows.
        colours: The mark of each row.
        shown: Its texts and headings (default: `for_reading`).
        entries: The name of the entry that each row belongs to; "" for none (default: rows belong to no entry).
    """
    if not table.rows:
        return None
    if shown is None:
        shown = for_reading(table)
        table = table.part(*(column.key for column in shown.columns))
    kinds = [_kind(table, i) for i in range(len(table.columns))]
    headings = [
        PageCell(SHORT.get(column.key, column.heading).replace("-", "\N{NON-BREAKING HYPHEN}"), "", kind)
        for column, kind in zip(shown.columns, kinds, strict=True)
    ]
    rows = []
    owners = entries or [""] * len(table.rows)
    for row, texts, colour, owner in zip(table.rows, shown.rows, colours, owners, strict=True):
        cells = [
            PageCell(_number_text(str(text)) if kind == "number" else str(text), _value(cell), kind)
            for cell, text, kind in zip(row, texts, kinds, strict=True)
        ]
        mark = themed(colour) if colour else colour
        rows.append(PageRow(_breakable(str(row[0])), mark, entry_key(owner) if owner else "", cells[1:]))
    return PageTable(f"table-{crc32(caption.encode(errors='replace')):08x}", caption, headings, rows)


def toggles(names: Sequence[str], colours: Sequence[str]) -> list[Toggle]:
    """List the entries that a page can hide; empty if there is only one."""
    found = [Toggle(name, themed(colour), entry_key(name)) for name, colour in zip(names, colours, strict=True)]
    return found if len(found) > 1 else []


def _kind(table: Table, i: int) -> str:
    if i and not table.columns[i].is_text:
        return "number"
    longest = max(len(str(row[i])) for row in table.rows)
    if longest > (LONG_TEXT if i else LONG_NAME):
        return "text"
    return "name" if i == 0 and longest > SHORT_NAME else ""


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
