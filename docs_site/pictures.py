"""Draw the pictures of `docs/pictures`: `python -m docs_site.pictures`. Colours follow the page, or the system's theme.

The picture of the house has an arrow for each import that the code has, so it is drawn again when that changes.
"""

import ast
from collections import defaultdict
from html import escape
from pathlib import Path

from docs_site.pages import DOCS, ROOT

FOUNDATION = ("errors", "parse", "interrupt", "user_code", "launch")
COLOURS = {  # variable of docs/stylesheets/site.css: light, dark
    "ink": ("#1f2733", "#e3e7ee"),
    "soft": ("#5b6675", "#aab3c0"),
    "line": ("#8a94a3", "#7d8796"),
    "box": ("#f3f5f9", "#2a2f3a"),
    "accent": ("#3949ab", "#9fa8ff"),
    "second": ("#b3541e", "#ffb386"),
}


class Drawing:
    """An SVG under construction: boxes, arrows and words in a fixed coordinate system."""

    def __init__(self, name: str, title: str, description: str, width: int, height: int) -> None:
        self.name, self.parts = name, [f'<title id="{name}-title">{escape(title)}</title>']
        self.parts.append(f'<desc id="{name}-desc">{escape(description)}</desc>')
        self.parts.append(f"<style>{self._style()}</style>")
        for kind in ("line", "accent", "second"):
            self.parts.append(
                f'<marker id="{name}-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
                f'orient="auto-start-reverse"><path class="{name}-f{kind}" d="M0 0 8 4 0 8z"/></marker>'
            )
        self.size = width, height

    def _style(self) -> str:
        """Return the style: variables of the page, else light colours, else those of a dark system."""
        name, names = self.name, list(COLOURS)
        rules = [f".{name} text{{font:14px system-ui,sans-serif;fill:var(--ink,{COLOURS['ink'][0]})}}"]
        for colour in names:
            value = f"var(--{colour},{COLOURS[colour][0]})"
            rules.append(f".{name}-f{colour}{{fill:{value}!important}}.{name}-s{colour}{{stroke:{value}}}")
        dark = ";".join(f"--{colour}:{COLOURS[colour][1]}" for colour in names)
        rules.append(f"@media(prefers-color-scheme:dark){{svg.{name}:root{{{dark}}}}}")  # :root: in a file of its own
        rules.append(f".{name} .small{{font-size:12px}}.{name} .bold{{font-weight:600}}")
        return "".join(rules)

    def box(self, x: float, y: float, w: float, h: float, *lines: str, colour: str = "line", fill: bool = True) -> None:
        """Add a box; its first line is bold, the others are small."""
        kind = f"{self.name}-fbox" if fill else ""
        style = "" if fill else ' fill="none"'
        self.parts.append(
            f'<rect class="{kind} {self.name}-s{colour}"{style} x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>'
        )
        top = y + h / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + 18 * number, line, bold=number == 0, small=number > 0)

    def text(
        self, x: float, y: float, words: str, *, bold: bool = False, small: bool = False, anchor: str = "middle",
        colour: str = "",
    ) -> None:  # fmt: skip
        """Add words."""
        kinds = " ".join(["bold"] * bold + ["small"] * small + [f"{self.name}-f{colour}"] * bool(colour))
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kinds}">{escape(words)}</text>')

    def arrow(self, *points: tuple[float, float], colour: str = "line") -> None:
        """Add a line through the points with a head at its end."""
        path = " ".join(f"{x} {y}" for x, y in points)
        self.parts.append(
            f'<path class="{self.name}-s{colour}" d="M{path}" fill="none" stroke-width="1.6" '
            f'marker-end="url(#{self.name}-{colour})"/>'
        )

    def svg(self) -> str:
        """Return the file."""
        w, h = self.size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="{self.name}" viewBox="0 0 {w} {h}" role="img" '
        head += f'aria-labelledby="{self.name}-title {self.name}-desc">'
        return "\n".join([head, *self.parts, "</svg>"]) + "\n"


def imports() -> dict[str, set[str]]:
    """Return which rooms of the package each room imports from, itself and the foundation left out."""
    source = ROOT / "src" / "sihg"
    found: dict[str, set[str]] = defaultdict(set)
    for file in source.rglob("*.py"):
        room = file.relative_to(source).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "sihg" and len(parts) > 1 and parts[1] not in {room, *FOUNDATION}:
                    found[room].add(parts[1])
    return found


def house() -> Drawing:
    """Draw the rooms of the package and who imports whom."""
    edges = imports()
    about = "Rooms from the command line at the top to the foundation at the bottom. Arrows point to what is imported."
    drawing = Drawing("house", "The rooms of sihg and who imports whom", about, 860, 608)
    drawing.box(20, 16, 820, 48, "cli", "one file per command; parses, calls, prints; may import every room")
    place = {
        "attacks": (210, 90, 96, 56),
        "integrations": (314, 90, 116, 56),
        "formats": (438, 90, 90, 56),
        "experiments": (536, 90, 110, 56),
        "minimax": (20, 200, 170, 170),
        "robust": (210, 200, 420, 170),
        "report": (670, 200, 170, 170),
        "loggers": (470, 398, 150, 48),
        "core": (20, 474, 360, 52),
        "store": (400, 474, 440, 52),
    }
    says = {
        "attacks": ("attacks", "model first"),
        "integrations": ("integrations", "others' loops"),
        "formats": ("formats", "exports"),
        "experiments": ("experiments", "grids"),
        "minimax": ("minimax", "problem, solver, history", "zoo, compare, profile"),
        "report": ("report", "records → figures,", "tables, page", "never imports torch"),
        "loggers": ("loggers", "others' dashboards"),
        "core": ("core", "prox, hybrid gradient, implicit step, draws, processes"),
        "store": ("store", "run folders, records, checkpoints: whole or absent"),
    }
    for room, lines in says.items():
        drawing.box(*place[room], *lines)
    drawing.box(*place["robust"], colour="accent")
    drawing.text(420, 224, "robust", bold=True)
    drawing.text(420, 242, "each part imports only from those before it", small=True)
    rows = [
        ("threat", "gradients", "data", "models"),
        ("certify", "memory", "attacks", "methods"),
        ("evaluation", "training"),
    ]
    for row, names in enumerate(rows):
        for column, name in enumerate(names):
            drawing.box(224 + 100 * column + (100 if row == 2 else 0), 252 + 38 * row, 92, 30, name)
    arrows = {
        ("attacks", "robust"): ((258, 146), (258, 200)),
        ("integrations", "robust"): ((390, 146), (390, 200)),
        ("integrations", "core"): ((350, 146), (350, 166), (204, 166), (204, 474)),
        ("formats", "robust"): ((470, 146), (470, 200)),
        ("formats", "store"): ((505, 146), (505, 166), (640, 166), (640, 474)),
        ("experiments", "robust"): ((585, 146), (585, 200)),
        ("experiments", "report"): ((646, 118), (755, 118), (755, 200)),
        ("experiments", "store"): ((625, 146), (625, 156), (654, 156), (654, 474)),
        ("experiments", "core"): ((550, 146), (550, 182), (194, 182), (194, 474)),
        ("minimax", "core"): ((105, 370), (105, 474)),
        ("minimax", "store"): ((150, 370), (150, 390), (416, 390), (416, 474)),
        ("robust", "core"): ((300, 370), (300, 474)),
        ("robust", "store"): ((444, 370), (444, 474)),
        ("robust", "loggers"): ((545, 370), (545, 398)),
        ("loggers", "store"): ((545, 446), (545, 474)),
        ("report", "store"): ((755, 370), (755, 474)),
    }
    drawn = {(room, other) for room in place for other in edges[room] if other in place}
    if drawn != arrows.keys():
        raise ValueError(
            f"give these imports an arrow in docs_site/pictures.py, or take it away: {drawn ^ arrows.keys()}"
        )
    for points in arrows.values():
        drawing.arrow(*points)
    drawing.box(
        20, 548, 820, 44, "errors, parse, interrupt, user_code, launch", "the foundation: every room may import it"
    )
    return drawing


def msi_hg() -> Drawing:
    """Draw one step of MSI-HG: what is kept, what is read and written, and when w moves."""
    about = "A batch reads its perturbations, searches near them with w fixed, writes them back, and then moves w."
    drawing = Drawing("msi-hg", "Where delta lives in MSI-HG, and what moves when", about, 860, 500)
    drawing.text(120, 26, "kept for each sample", bold=True)
    drawing.text(430, 26, "one batch of epoch e", bold=True)
    drawing.text(740, 26, "kept for the network", bold=True)
    drawing.box(20, 44, 200, 300, colour="accent", fill=False)
    drawing.text(120, 68, "perturbation memory", bold=True, colour="accent")
    drawing.text(120, 86, "one byte per pixel, RAM or files", small=True)
    drawing.box(36, 104, 168, 70, "δᵢ", "generation e − 1", "at rest until epoch e ends", colour="accent")
    drawing.box(36, 250, 168, 70, "δᵢ⁺", "generation e", "written in this epoch", colour="accent")
    steps = [
        ("1  recall", "δᵢ of the samples of the batch, moved with its image"),
        ("2  search", "T signed steps in Sᵢ: in the ball, within τ of δᵢ"),
        ("3  keep", "δᵢ⁺ = where the search ended, moved back"),
        ("4  gradient", "g = ∇ of the loss at xᵢ + δᵢ⁺, in w"),
        ("5  step", "the optimiser steps along (1 + θ) g − θ q, then q = g"),
    ]
    for number, lines in enumerate(steps):
        colour = "accent" if number < 3 else "second"
        drawing.box(266, 44 + 84 * number, 332, 60, *lines, colour=colour)
        if number:
            drawing.arrow((432, 20 + 84 * number), (432, 44 + 84 * number))
    drawing.box(646, 128, 194, 60, "w", "fixed while δ moves", colour="second")
    drawing.box(646, 380, 194, 60, "q", "the gradient of the last step", colour="second")
    drawing.arrow((204, 139), (236, 139), (236, 74), (266, 74), colour="accent")
    drawing.arrow((266, 242), (236, 242), (236, 285), (204, 285), colour="accent")
    drawing.arrow((646, 158), (598, 158), colour="second")
    drawing.arrow((598, 402), (646, 402), colour="second")
    drawing.arrow((646, 420), (598, 420), colour="second")
    drawing.arrow((598, 390), (620, 390), (620, 230), (743, 230), (743, 188), colour="second")
    drawing.text(720, 250, "moves w once per batch", small=True)
    drawing.arrow((266, 410), (250, 410), (250, 60), (266, 60))
    drawing.text(242, 384, "next batch", small=True, anchor="end")
    drawing.text(
        430,
        478,
        "After the epoch, generation e is what epoch e + 1 reads. A checkpoint needs no copy of it.",
        small=True,
    )
    return drawing


def main() -> None:
    """Write both pictures."""
    for name, drawing in (("house", house()), ("msi-hg", msi_hg())):
        path = Path(DOCS, "pictures", f"{name}.svg")
        path.write_text(drawing.svg(), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
