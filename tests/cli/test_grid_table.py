"""The table of a grid, compared with the paper."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from sihg.cli.grid_table import results_json, results_table
from sihg.experiments.grid import Grid
from sihg.experiments.grid_run import GridResult
from sihg.experiments.grid_summary import MethodSummary
from sihg.robust.training.config import read_preset

ATTACKS = ("natural", "pgd-20", "pgd-50-10", "fgsm")


def grid(name: str, *methods: str) -> Grid:
    return Grid(Path("nowhere"), {method: read_preset(name, method) for method in methods}, 3, ATTACKS, None, 1)


def row(method: str, *values: float) -> MethodSummary:
    return MethodSummary(method, tuple(range(len(values))), dict.fromkeys(ATTACKS, values), values, values)


def as_json(made: Grid, *rows: MethodSummary) -> Any:
    return json.loads(results_json(GridResult(made, list(rows), [], {})))["methods"]


def cells(text: str, start: str) -> list[str]:
    (found,) = [line for line in text.splitlines() if line.strip("│ ").startswith(f"{start} ")]
    return [cell.strip() for cell in found.strip("│").split("│")]


def test_the_papers_numbers_are_below_ours() -> None:
    values = (0.5, 0.25, 0.125)
    made = results_table(grid("mnist", "pgd"), [row("pgd", *values)])
    spread = f"{100 * statistics.mean(values):.2f} ± {100 * statistics.stdev(values):.2f}"
    assert cells(made, "pgd") == ["pgd", "3", *[spread] * 4, "0.3", "0.3"]
    paper = ["the paper", "5", "94.68 ± 0.21", "54.24 ± 4.27", "44.30 ± 4.60", "-", "-", "-"]
    assert cells(made, "the paper") == paper
    cited, unlike = made.splitlines()[-2:]
    assert cited.startswith("the paper: Kim and Seo")
    assert cited.endswith("Table 3 (section 5); all test samples there, all test samples here")
    assert "bounds (none): [0.0, 1.0]; " in unlike
    assert "method.ramp (0): 3.0; " in unlike
    assert "epochs" not in unlike
    (found,) = as_json(grid("mnist", "pgd"), row("pgd", *values))
    assert found["paper"]["accuracy"]["pgd-50-10"] == {"mean": 0.443, "deviation": 0.046}
    assert found["paper"]["departures"]["bounds"] == [[0.0, 1.0], "none"]
    assert found["accuracy"]["pgd-20"]["values"] == list(values)


def test_quoted_numbers_have_no_trials() -> None:
    made = results_table(replace(grid("cifar10", "yopo"), samples=500), [row("yopo", 0.5)])
    assert cells(made, "the paper") == ["the paper", "-", "83.99", "44.72", *["-"] * 4]
    cited, unlike, remark = made.splitlines()[-3:]
    assert cited.endswith("all test samples there, 500 test samples here")
    assert unlike.startswith("Settings that differ from the paper's")
    assert remark.startswith("YOPO: the best that its authors report")
    assert as_json(grid("cifar10", "yopo"), row("yopo", 0.5))[0]["paper"]["trials"] is None


def test_without_numbers_in_the_paper_no_row_is_added() -> None:
    made = results_table(grid("digits", "pgd", "natural"), [row("pgd", 0.5), row("natural")])
    assert "the paper" not in made
    assert cells(made, "pgd")[:3] == ["pgd", "1 of 3", "50.00"]
    assert cells(made, "natural") == ["natural", "0 of 3", *["-"] * 6]
    assert as_json(grid("digits", "pgd"), row("pgd", 0.5))[0]["paper"] is None
