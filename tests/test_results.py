"""The figures in docs/results are those of the committed records, as `sihg compare results/NAME.zip` gives them."""

from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

import pytest

from benchmarks.results_figure import ATTACKS, read_rows
from sihg.report import compare

ROOT = Path(__file__).parents[1]
PAGES = {  # by archive: its page, and the digits behind the point there
    "mnist": ("mnist-methods", 2),
    "mnist-pgd-5": ("mnist-methods", 2),
    "mnist-plain": ("mnist-methods", 2),
    "mnist-no-box": ("mnist-methods", 2),
    "mnist-robust-wide": ("mnist", 1),
    "mnist-robust-wide-ball": ("mnist", 1),
    "method-table": ("method-table", 1),
    "paper-mnist": ("paper-settings", 2),
    "svhn": ("svhn", 2),
    "cifar10": ("cifar10", 2),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_the_figures_of_the_records(name: str) -> None:
    """A mean with its deviation where the page has that; else the figure of each seed."""
    page, digits = PAGES[name]
    text = (ROOT / "docs/results" / f"{page}.md").read_text(encoding="utf-8").replace("**", "")
    found = compare(ROOT / "results" / f"{name}.zip")
    for _, group in groupby(sorted(found.runs, key=lambda run: run.method), key=lambda run: run.method):
        runs = list(group)
        for attack in (*ATTACKS, "standard"):
            values = [100 * run.evaluations[attack].accuracy for run in runs if attack in run.evaluations]
            if len(values) == len(runs) >= 3 and digits == 2:
                assert f"| {fmean(values):.2f} ± {stdev(values):.2f} |" in text
            else:
                assert all(f" {value:.{digits}f} " in text for value in values)


def test_the_figure_has_a_row_per_method_that_the_paper_has_too() -> None:
    rows = list(read_rows(ROOT / "results"))
    labels = [row.label for row in rows]
    assert "MNIST, MSI-HG: 6 of 50 epochs, 3 seeds, pixel box" in labels
    row = rows[labels.index("SVHN, PGD AT: 3 of 15 epochs, 1 seed, pixel box")]
    assert {attack: round(100 * found.mean, 2) for attack, found in row.ours.items()} == {
        "natural": 88.59,
        "pgd-20": 65.58,
    }
    assert round(100 * row.theirs["pgd-20"].mean, 2) == 66.94
