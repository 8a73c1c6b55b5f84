"""The compact table of results: the order of its columns, and what is bold in LaTeX."""

from sihg.report.tables.compact import best_cells, results_first, results_latex
from sihg.report.tables.table import PERCENT, Column, Table
from sihg.store.statistics import Spread

KEYS = (
    "entry",
    "method",
    "trials",
    "epochs",
    "test natural",
    "test pgd-20",
    "test standard",
    "test all",
    "passes",
    "seconds",
)
MADE = Table(
    [
        Column(key, f"{key.removeprefix('test ')}{PERCENT}" if key.startswith("test") else key, key == "entry")
        for key in KEYS
    ],
    [
        ["a", "pgd", 3, 8, Spread(0.875, 0.01, 3), Spread(0.5, 0.02, 3), 0.25, 0.25, 11.0, 2.0],
        ["b", "dat", 3, 8, Spread(0.9375, None, 2, None, 0.925, 0.95), 0.4375, 0.3125, 0.3125, 6.0, 3.0],
        ["paper: dat", "dat", 5, 8, 0.99, 0.99, None, None, None, None],
    ],
)


def keys(table: Table) -> list[str]:
    return [column.key for column in table.columns]


def test_robust_accuracy_comes_first_and_costs_last() -> None:
    shown = results_first(MADE, ["method", "trials"])
    assert keys(shown) == ["entry", "test standard", "test pgd-20", "test natural", "passes", "seconds", "epochs"]


def test_all_stays_where_it_differs_from_every_attack() -> None:
    rows = [[*row[:7], 0.125, *row[8:]] for row in MADE.rows]
    assert keys(results_first(Table(MADE.columns, rows)))[1] == "test all"


def test_without_tests_the_order_stays() -> None:
    part = MADE.part("entry", "trials", "passes")
    assert keys(results_first(part)) == ["entry", "trials", "passes"]


def test_numbers_of_samples_stay_in_their_cells() -> None:
    sized = Table(
        [*MADE.columns[:1], Column("test fgsm", f"fgsm{PERCENT}"), Column("samples fgsm", "n", size_of="test fgsm")],
        [["a", 0.5, 100]],
    )
    assert keys(results_first(sized)) == ["entry", "test fgsm", "samples fgsm"]


def test_latex_has_the_best_of_ours_in_bold() -> None:
    lines = results_latex(MADE, [True, True, False]).splitlines()
    assert lines[2:5] == [
        r"\toprule",
        r"entry & standard~\% & pgd-20~\% & natural~\% & method & passes \\",
        r"\midrule",
    ]
    assert lines[5:8] == [
        r"a & 25.0 & \textbf{50.0~$\pm$~2.0} & 87.5~$\pm$~1.0 & pgd & 11 \\",
        r"b & \textbf{31.2} & 43.8 & \textbf{93.8 (92.5--95.0)} & dat & 6 \\",
        r"paper: dat & --- & 99.0 & 99.0 & dat & --- \\",
    ]


def test_ties_are_both_the_best_and_one_row_has_none() -> None:
    table = Table([Column("a", "a"), Column("b", "b")], [[1.0, 3], [1.0, 2], [None, "x"]])
    assert best_cells(table, highest=[0], lowest=[1]) == {(0, 0), (1, 0), (1, 1)}
    assert best_cells(Table(table.columns, table.rows[:1]), highest=[0], lowest=[1]) == set()
