"""The report on a performance profile: files, numbers, page."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from sihg.report import report
from sihg.report.figures.profile_curves import profile_curves
from sihg.report.figures.style import figure_style
from sihg.report.profile_report import cost_table, method_table, report_profile
from sihg.store.profile_records import SolverProfile
from sihg.store.schema import write_record
from sihg.store.verify import check_folder
from tests.refused import refused
from tests.report.folders import read_page
from tests.store.test_profile_records import COSTS, made

FIGURES = [f"{name}.{kind}" for name in ("profile", "costs") for kind in ("svg", "png")]
TABLES = ["table.csv", "table.md", "table.tex", "costs.csv", "index.html"]


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few pixels, which is faster."""
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


def written(folder: Path, found: SolverProfile) -> list[str]:
    folder.mkdir(exist_ok=True)
    write_record(folder / "profile.json", found)
    return [path.name for path in report_profile(folder)]


def test_everything_is_written_and_carries_a_sum(tmp_path: Path) -> None:
    single = {problem: {method: own[:1] for method, own in row.items()} for problem, row in COSTS.items()}
    assert written(tmp_path, made(single, starts=0)) == [*FIGURES, *TABLES]
    for name in FIGURES[::2]:
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")
    assert read_page(tmp_path).count("<svg") == 2
    assert {check.result for check in check_folder(tmp_path)} == {"good"}
    (tmp_path / "profile.png").write_bytes(b"other")
    assert [check.path.name for check in check_folder(tmp_path) if check.result == "wrong"] == ["profile.png"]
    assert [path.name for path in report(tmp_path)] == [*FIGURES, *TABLES]


def test_from_random_starts_there_are_shares_instead_of_curves(tmp_path: Path) -> None:
    assert written(tmp_path, made()) == [*FIGURES[2:], *TABLES]
    assert "From random starts of each problem" in read_page(tmp_path)
    svg = (tmp_path / "costs.svg").read_text(encoding="utf-8")
    assert "share of starts that it solves" in svg or "<path" in svg


def test_tables_hold_the_numbers_of_the_profile(tmp_path: Path) -> None:
    found = made()
    written(tmp_path, found)
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["b", "a", "c"]
    assert [float(rows[0][key]) for key in ("solved", "within_1", "within_2")] == pytest.approx([4 / 6, 2 / 6, 4 / 6])
    assert "66.67" in read_page(tmp_path)  # the page and the Markdown say percent
    assert "66.67" in (tmp_path / "table.md").read_text(encoding="utf-8")
    table = cost_table(found)
    outcome = [column.key for column in table.columns].index("outcome")
    assert table.rows[3][outcome] == "budget spent 1 x, solved 1 x"
    assert len(method_table(found).rows) == 3


def test_an_unfinished_profile_says_so(tmp_path: Path) -> None:
    found = made()
    assert found.progress == ""
    part = msgspec.structs.replace(found, cells=found.cells[:-1])
    assert part.progress.startswith(f"{len(found.cells) - 1} of {len(found.cells)} cells are done")
    written(tmp_path, part)
    assert part.progress in read_page(tmp_path)


def test_the_median_cost_is_that_of_the_cell() -> None:
    found = made({"easy": {"a": [0, 10, 30, None], "b": [0, 10, 30, 50], "c": [None] * 4}}, starts=4)
    assert {row[0]: row[-1] for row in method_table(found).rows} == {"a": 10.0, "b": 20.0, "c": None}
    assert [one.median_cost for one in found.cells[:2]] == [10.0, 20.0]


def test_both_rules_of_a_method_share_a_panel() -> None:
    costs: dict[str, dict[str, list[int | None]]] = {
        "easy": {"a": [10], "a@adaptive": [5], "b": [20]},
        "hard": {"a": [None], "a@adaptive": [7], "b": [9]},
    }
    with figure_style():
        figure = profile_curves(made(costs, starts=0))
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == ["a", "b"]
    solid, dashed = (line for line in figure.axes[0].lines if line.get_linewidth() > 1.5)
    assert np.asarray(solid.get_ydata())[-1] == 0.5
    assert np.asarray(dashed.get_ydata()).tolist() == [1.0, 1.0]  # the best on both, from factor 1 on


def test_a_folder_without_a_profile_is_refused(tmp_path: Path) -> None:
    with refused("record-unreadable"):
        report_profile(tmp_path)
