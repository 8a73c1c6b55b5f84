"""Write tables in LaTeX, with the rules of booktabs."""

from collections.abc import Collection

from sihg.report.tables.table import Table, cell_text, printable_text

SPECIAL = {  # characters that LaTeX reads as commands, or does not know
    **{special: f"\\{special}" for special in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # at the start of a row, LaTeX would take it for an argument
    "*": "{*}",
    "\N{NO-BREAK SPACE}": "~",
    "±": r"$\pm$",
    "—": "---",
    "–": "--",  # noqa: RUF001
    "ε": r"$\epsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",  # noqa: RUF001
    "τ": r"$\tau$",
    "θ": r"$\theta$",
    "‖": r"$\|$",
    "²": r"$^2$",
    "×": r"$\times$",  # noqa: RUF001
}


def as_latex(table: Table, bold: Collection[tuple[int, int]] = ()) -> str:
    """Write a LaTeX table, numbers to three digits; `bold` has the row and column of what is best."""
    lines = [[_latex(column.heading) for column in table.columns]]
    for i, row in enumerate(table.rows):
        texts = [_latex(cell_text(cell)) for cell in row]
        lines.append([rf"\textbf{{{text}}}" if (i, j) in bold else text for j, text in enumerate(texts)])
    head, *body = [f"{' & '.join(line)} \\\\\n" for line in lines]
    places = "".join("l" if column.is_text else "r" for column in table.columns)
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{places}}}\n\\toprule\n{head}\\midrule\n"
        f"{''.join(body)}\\bottomrule\n\\end{{tabular}}\n"
    )


def _latex(text: str) -> str:
    return "".join(SPECIAL.get(c, c) for c in printable_text(text))
