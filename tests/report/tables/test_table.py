"""Tables in their three forms."""

import csv
import io

from sihg.report.tables.latex import as_latex
from sihg.report.tables.table import Column, Table, as_csv, as_markdown
from sihg.store.statistics import Spread

MADE = Table(
    [Column("entry", "entry", is_text=True), Column("a", "a %"), Column("b", "b")],
    [["x_1 & y", Spread(0.5, 0.125, 3), 3], ["<z>$~^|", Spread(0.25, None, 1), None]],
)


def test_csv_has_deviations_in_separate_columns() -> None:
    assert as_csv(MADE) == "entry,a,a_deviation,a_n,b\nx_1 & y,0.5,0.125,3,3\n<z>$~^|,0.25,,1,\n"


def test_csv_has_the_range_of_trials() -> None:
    some = Table(MADE.columns[:2], [["x", Spread(0.5, None, 2, None, 0.25, 0.75)], ["y", Spread(0.25, None, 1)]])
    assert as_csv(some) == "entry,a,a_low,a_high,a_n\nx,0.5,0.25,0.75,2\ny,0.25,,,1\n"


def test_csv_has_no_empty_columns_for_single_trials() -> None:
    single = Table(MADE.columns[:2], [["x", Spread(0.25, None, 1)]])
    assert as_csv(single) == "entry,a\nx,0.25\n"


def test_markdown_is_escaped() -> None:
    lines = as_markdown(MADE).splitlines()
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[2] == "| x\\_1 &amp; y | 0.5 ± 0.125 | 3 |"
    assert lines[3] == "| &lt;z&gt;\\$\\~^\\| | 0.25 | — |"


def test_latex_is_escaped() -> None:
    assert as_latex(MADE) == (
        "% needs \\usepackage{booktabs}\n"
        "\\begin{tabular}{lrr}\n\\toprule\n"
        "entry & a \\% & b \\\\\n\\midrule\n"
        "x\\_1 \\& y & 0.5~$\\pm$~0.125 & 3 \\\\\n"
        "\\textless{}z\\textgreater{}\\$\\textasciitilde{}\\textasciicircum{}\\textbar{} & 0.25 & --- \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def test_a_latex_row_can_begin_with_a_bracket_or_star() -> None:
    made = as_latex(Table([Column("[head]", "[head]", is_text=True)], [["[1pt] a"], ["* b"]]))
    assert made.splitlines()[3:7] == ["{[}head] \\\\", "\\midrule", "{[}1pt] a \\\\", "{*} b \\\\"]


def test_a_mean_over_some_of_the_trials_says_so() -> None:
    some = Table([Column("a", "a")], [[Spread(0.5, 0.125, 3, 4)], [Spread(0.5, None, 2, 4, 0.25, 0.75)]])
    lines = as_markdown(some).splitlines()
    assert lines[2:] == ["| 0.5 ± 0.125 (3 of 4) |", "| 0.5 (0.25 - 0.75; 2 of 4) |"]
    assert "0.5 (0.25~-~0.75; 2~of~4)" in as_latex(some)


def test_no_spreadsheet_runs_a_cell() -> None:
    names = ["=1+1", "+x", "-rf", "@a", "\tb", "\rc", "-1.5", "+2e3", "a=b", "\udcff"]
    table = Table([Column("=entry", "entry", is_text=True), Column("n", "n")], [[name, -1] for name in names])
    lines = list(csv.reader(io.StringIO(as_csv(table), newline="")))
    assert lines[0] == ["'=entry", "n"]
    shown = ["'=1+1", "'+x", "'-rf", "'@a", " b", " c", "-1.5", "+2e3", "a=b", " "]
    assert lines[1:] == [[name, "-1"] for name in shown]


def test_tables_for_reading_have_no_control_characters() -> None:
    table = Table([Column("a", "a", is_text=True)], [["x\x1b[2J\u2028y\udcff"]])
    for text in (as_markdown(table), as_latex(table)):
        assert text.replace("\n", "").isprintable()
