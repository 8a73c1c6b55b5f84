"""What every report page is made of: one HTML document that needs nothing but itself, no network, no scripts."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from sihg.report.read.runs import as_text
from sihg.report.tables.table import Cell, Column, Table, read
from sihg.store.statistics import group_similar

LARGEST_SVG = 1_500_000  # bytes; a larger figure goes in as PNG
LONG_TEXT = 16  # letters; a column of longer texts gets room to wrap them
CSS = files("sihg.report.page").joinpath("page.css").read_text(encoding="utf-8")


class Drawn(NamedTuple):
    """A figure on disk, the same for print or as pixels, and what to say of it."""

    svg: Path
    other: Path
    heading: str
    caption: str
    part: str = ""  # of the page


def document(title: str, kicker: str, about: str, parts: Iterable[str], refresh: float | None = None) -> str:
    """The page as text; `parts` are its body in HTML, the rest is plain text.

    With `refresh`, a browser reads it again after so many seconds.
    """
    again = "" if refresh is None else f'\n<meta http-equiv="refresh" content="{max(1, round(refresh))}">'
    body = "\n".join(part for part in parts if part).encode(errors="backslashreplace").decode()  # names may be no text
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">{again}
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{escape(title)} · {escape(kicker)}</title>
<style>
{CSS}</style>
</head>
<body>
<main>
<header>
<p class="kicker">{escape(kicker)}</p>
<h1>{escape(title)}</h1>
<p class="about">{escape(about)}</p>
</header>
{body}
</main>
</body>
</html>
"""


def facts_list(facts: Iterable[str]) -> str:
    """Short facts in a row."""
    return '<ul class="facts">' + "".join(f"<li>{escape(fact)}</li>" for fact in facts) + "</ul>"


def warnings_box(warnings: Iterable[tuple[str, str]]) -> str:
    """Warnings, each with the names of what it is about, once if only numbers differ; nothing where there are none."""
    alike = group_similar(warnings)
    items = [f"<li><b>{escape(', '.join(about))}</b>: {escape(_first(about))}</li>" for about in alike]
    if not items:
        return ""
    return f'<section class="warnings"><h2>Warnings</h2><ul>{"".join(items)}</ul></section>'


def _first(about: dict[str, str]) -> str:
    (name, text), *_ = about.items()
    return text if len(set(about.values())) == 1 else f"{text} ({name}; the others have other numbers)"


def rich_cell(cell: Cell, _: Column) -> str:
    """A cell; a number in scientific notation reads as a power of ten and keeps its value for machines."""
    text = escape(read(cell))
    power = re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", text)
    if power:
        exponent = str(int(power[2])).replace("-", "\N{MINUS SIGN}")
        text = f"{power[1]} &times; 10<sup>{exponent}</sup>"
    return f'<data value="{cell!r}">{text}</data>' if isinstance(cell, int | float) else text


def rich_table(
    made: Table, caption: str, colours: Sequence[str | None], cell: Callable[[Cell, Column], str] = rich_cell
) -> str:
    """A table whose rows are named by their first cell and marked with a colour; `cell` writes the others in HTML.

    A row without a mark has the colour "", an aside has None.
    """

    def kind(i: int) -> str:
        if i and not made.columns[i].is_text:
            return ' class="number"'
        return ' class="text"' if i and any(len(str(row[i])) > LONG_TEXT for row in made.rows) else ""

    headings = [escape(column.heading).replace("-", "\N{NON-BREAKING HYPHEN}") for column in made.columns]
    head = "".join(f'<th scope="col"{kind(i)}>{heading}</th>' for i, heading in enumerate(headings))
    rows = []
    for row, colour in zip(made.rows, colours, strict=True):
        cells = "".join(f"<td{kind(i)}>{cell(value, made.columns[i])}</td>" for i, value in enumerate(row) if i)
        dot = f'<span class="dot" style="background:{colour}"></span>' if colour else ""
        aside = ' class="aside"' if colour is None else ""
        rows.append(f'<tr{aside}><th scope="row">{dot}{escape(str(row[0]))}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def figures_grid(figures: Sequence[Drawn], first: int = 0, kind: str = "") -> str:
    """Figures with their captions, numbered from `first` on a page; nothing where there are none."""
    if not figures:
        return ""
    drawn = (_figure(figure, first + i) for i, figure in enumerate(figures))
    return "\n".join([f'<div class="{" ".join(["figures", *kind.split()])}">', *drawn, "</div>"])


def note(text: str) -> str:
    """A remark below a table; nothing for no text."""
    return f'<p class="note">{escape(text)}</p>' if text else ""


def folded(summary: str, body: str) -> str:
    """HTML that is shown on request, below a line of text."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def pairs_list(heading: str, pairs: Mapping[str, Any]) -> str:
    """Names and values under a heading; nothing where there are none."""
    if not pairs:
        return ""
    items = "".join(f"<dt>{escape(key)}</dt><dd>{escape(as_text(value))}</dd>" for key, value in pairs.items())
    return f"<section><h2>{escape(heading)}</h2><dl>{items}</dl></section>"


def _figure(figure: Drawn, number: int) -> str:
    caption = f"<figcaption><b>{escape(figure.heading)}.</b> {escape(figure.caption)}</figcaption>"
    return f"<figure>{_image(figure, number)}{caption}</figure>"


def _image(figure: Drawn, number: int) -> str:
    """The SVG in place, with ids of its own among the others on the page, or the PNG where the SVG is huge."""
    if figure.svg.stat().st_size > LARGEST_SVG and figure.other.suffix == ".png":
        data = base64.b64encode(figure.other.read_bytes()).decode()
        return f'<img alt="{escape(figure.heading)}" src="data:image/png;base64,{data}">'
    svg = figure.svg.read_text(encoding="utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>f{number}-", svg)
    opening = f'<svg role="img" aria-label="{escape(figure.heading)}"'
    return svg.strip().replace("<svg", opening, 1)
