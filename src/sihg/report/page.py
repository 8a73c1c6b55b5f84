"""One HTML page that needs nothing but itself: no network, no scripts."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from sihg.report.records import Solved
from sihg.report.style import look
from sihg.report.table import Cell, Column, Table, read

LARGEST_SVG = 1_500_000  # bytes; a larger figure goes in as PNG
RESULTS = (
    *("method", "iterations", "w_gradients", "delta_gradients", "seconds", "saddle_norm_squared"),
    *("mean_saddle_norm_squared", "guarantee", "distance"),
)
STEPS = ("method", "sigma", "tau", "theta", "source", "stopped")
CSS = files("sihg.report").joinpath("page.css").read_text(encoding="utf-8")


class Drawn(NamedTuple):
    """A figure on disk and what to say of it."""

    svg: Path
    png: Path
    heading: str
    caption: str


def page(solved: Solved, made: Table, figures: Sequence[Drawn]) -> str:
    """The page as text."""
    title = escape(solved.problem)
    parts = [
        _facts(solved),
        _warnings(solved),
        "<h2>Results</h2>",
        _table(made.part(*RESULTS), "What every method reached, and what it cost"),
        '<div class="figures">',
        *(_figure(figure, i) for i, figure in enumerate(figures)),
        "</div>",
        "<h2>Step sizes and stopping</h2>",
        _table(made.part(*STEPS), "The step sizes, where they come from, and why the method stopped"),
        '<div class="columns">',
        _pairs("Options of the problem", solved.options),
        _pairs("Environment", solved.environment),
        "</div>",
        "<h2>To reproduce</h2>",
        f"<pre><code>{escape(solved.command)}</code></pre>",
    ]
    body = "\n".join(part for part in parts if part)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title} · sihg solve</title>
<style>
{CSS}</style>
</head>
<body>
<main>
<header>
<p class="kicker">sihg solve</p>
<h1>{title}</h1>
<p class="about">{escape(solved.about)}</p>
</header>
{body}
</main>
</body>
</html>
"""


def _facts(solved: Solved) -> str:
    def count(number: int, one: str, many: str) -> str:
        return f"{number:,} {one if number == 1 else many}"

    facts = [
        count(solved.n, "block", "blocks"),
        count(solved.dimension_w, "number in w", "numbers in w"),
        f"{solved.dimension_delta:,} in δ",
        count(solved.iterations, "iteration asked for", "iterations asked for"),
        f"seed {solved.seed}",
    ]
    return '<ul class="facts">' + "".join(f"<li>{fact}</li>" for fact in facts) + "</ul>"


def _warnings(solved: Solved) -> str:
    items = [f"<li><b>{escape(run.method)}</b>: {escape(text)}</li>" for run in solved.methods for text in run.warnings]
    if not items:
        return ""
    return f'<section class="warnings"><h2>Warnings</h2><ul>{"".join(items)}</ul></section>'


def _table(made: Table, caption: str) -> str:
    def kind(i: int) -> str:
        return "" if not i else ' class="text"' if made.columns[i].is_text else ' class="number"'

    head = "".join(f'<th scope="col"{kind(i)}>{escape(column.heading)}</th>' for i, column in enumerate(made.columns))
    rows = []
    for row in made.rows:
        cells = "".join(f"<td{kind(i)}>{_cell(cell, made.columns[i])}</td>" for i, cell in enumerate(row) if i)
        rows.append(f'<tr><th scope="row">{_method(str(row[0]))}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _method(name: str) -> str:
    return f'<span class="dot" style="background:{look(name).colour}"></span>{escape(name)}'


def _cell(cell: Cell, column: Column) -> str:
    """A cell; a number in scientific notation reads as a power of ten and keeps its value for machines."""
    if cell is None and column.key in ("saddle_norm_squared", "mean_saddle_norm_squared"):
        return "not finite"
    text = escape(read(cell))
    power = re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", text)
    if power:
        exponent = str(int(power[2])).replace("-", "\N{MINUS SIGN}")
        text = f"{power[1]} &times; 10<sup>{exponent}</sup>"
    return f'<data value="{cell!r}">{text}</data>' if isinstance(cell, int | float) else text


def _figure(figure: Drawn, number: int) -> str:
    caption = f"<figcaption><b>{escape(figure.heading)}.</b> {escape(figure.caption)}</figcaption>"
    return f"<figure>{_image(figure, number)}{caption}</figure>"


def _image(figure: Drawn, number: int) -> str:
    """The SVG in place, with ids of its own among the others on the page, or the PNG where the SVG is huge."""
    if figure.svg.stat().st_size > LARGEST_SVG:
        data = base64.b64encode(figure.png.read_bytes()).decode()
        return f'<img alt="{escape(figure.heading)}" src="data:image/png;base64,{data}">'
    svg = figure.svg.read_text(encoding="utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>f{number}-", svg)
    opening = f'<svg role="img" aria-label="{escape(figure.heading)}"'
    return svg.strip().replace("<svg", opening, 1)


def _pairs(heading: str, pairs: Mapping[str, Any]) -> str:
    if not pairs:
        return ""
    items = "".join(f"<dt>{escape(key)}</dt><dd>{escape(_value(value))}</dd>" for key, value in pairs.items())
    return f"<section><h2>{escape(heading)}</h2><dl>{items}</dl></section>"


def _value(value: Any) -> str:
    if value is None:
        return "—"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
