"""The report on a solve: files, numbers, page."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sihg.report.read.palette import LOOKS
from sihg.report.solve_report import report_solve
from sihg.store.schema import write_json
from tests.report.folders import numbers, read_page
from tests.report.solve_folders import ITERATIONS, Histories, spiral, write_path, write_solve

EVIL = '<script>alert("1")</script> & $x_{$'


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few pixels, which is faster."""
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


def test_everything_is_written(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out")
    written = report_solve(folder)
    expected = ["convergence.svg", "convergence.png", "cost.svg", "cost.png", "table.csv", "table.md"]
    expected += ["table.tex", "index.html"]
    assert [path.name for path in written] == expected
    assert all(path.parent == folder and path.stat().st_size > 100 for path in written)
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plane_problem_also_gets_its_trajectories(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", plane=True)
    written = [path.name for path in report_solve(folder)]
    assert "trajectories.svg" in written
    assert "trajectories.png" in written
    assert read_page(folder).count("<svg") == 3


def test_a_field_left_by_another_problem_is_not_used(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", plane=True, dimension_w=8, dimension_delta=8)
    assert not any("trajectories" in path.name for path in report_solve(folder))


def test_tables_hold_the_numbers_of_the_data(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", changes={"ssi-hg": {"bound": 20.0, "saddle_norm_squared": 1.23456789e-9}})
    report_solve(folder)
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert first["method"] == "ssi-hg"
    assert float(first["saddle_norm_squared"]) == 1.23456789e-9
    assert (first["iterations"], first["w_gradients"], first["delta_gradients"]) == ("40", "1234", "5678")
    assert float(first["guarantee"]) == 20.0 / 40
    assert second["guarantee"] == ""
    mean = sum(2.0 / (k + 1) ** 2 for k in range(1, 41)) / 40
    assert float(first["mean_saddle_norm_squared"]) == pytest.approx(mean, rel=1e-12)
    page, markdown = read_page(folder), (folder / "table.md").read_text(encoding="utf-8")
    assert {40, 1234, 5678, 1.25, 1.23456789e-9, 3.25e-5, 0.375, 0.0625, 0.5} <= set(numbers(page))
    assert "1.23 &times; 10<sup>\N{MINUS SIGN}9</sup>" in page
    assert "| ssi-hg | 40 | 1,234 | 5,678 | 1.25 | 1.23e-09 |" in markdown
    assert len({line.count(" | ") for line in markdown.splitlines()}) == 1


def test_the_bound_has_no_column_if_no_method_has_one(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out")
    report_solve(folder)
    assert "guarantee" not in (folder / "table.csv").read_text(encoding="utf-8")
    assert "bound on it" not in read_page(folder)


def test_the_page_says_all_there_is(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", changes={"eg+": {"warnings": ["lower tau"]}})
    report_solve(folder)
    page = read_page(folder)
    for text in ("A test.", "lower tau", "weight", "3.11.2", "sihg solve forsaken --out out", "seed 7", "Theorem 1"):
        assert text in page


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    everywhere: dict[str, Any] = dict.fromkeys(("problem", "about", "command"), EVIL)
    evil_entry = {"warnings": [EVIL], "stopped": EVIL, "source": EVIL}
    folder = write_solve(
        tmp_path / "out",
        plane=True,
        changes={"ssi-hg": evil_entry},
        options={EVIL: EVIL},
        environment={"python": EVIL},
        **everywhere,
    )
    report_solve(folder)
    page = read_page(folder)
    assert page.count("<script") == 1  # ours
    assert page.count("&lt;script&gt;") >= 10
    assert "<script" not in (folder / "convergence.svg").read_text(encoding="utf-8")
    assert "<script" not in (folder / "table.md").read_text(encoding="utf-8")


def test_a_method_can_have_any_name(tmp_path: Path) -> None:
    report_solve(
        write_solve(
            tmp_path / "out",
            {"$x_{": [1.0, 0.5], "_hidden": [1.0, 0.2], "方法": [1.0, 0.1], "a" * 50: [1.0, 0.7]},
            plane=True,
        )
    )


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", plane=True)
    report_solve(folder)
    page = read_page(folder)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_a_huge_figure_goes_in_as_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.report.page.page_figures.LARGEST_SVG", 1000)
    folder = write_solve(tmp_path / "out")
    report_solve(folder)
    assert read_page(folder).count('src="data:image/png;base64,') == 2
    assert "<svg" not in read_page(folder)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", plane=True)
    first = {path: path.read_bytes() for path in report_solve(folder)}
    assert {path: path.read_bytes() for path in report_solve(folder)} == first


STRANGE: dict[str, Histories] = {
    "diverged": {"gda": [10.0 ** (5 * k) for k in range(60)], "ssi-hg": [1.0 / (k + 1) for k in range(60)]},
    "diverged alone": {"gda": [10.0 ** (5 * k) for k in range(60)]},
    "not finite at the end": {"gda": [1.0, 1e150, 1e300, None], "ssi-hg": [1.0, 0.9, 0.8, 0.7]},
    "not finite at the start": {"gda": [None, None, 1.0, 0.5]},
    "never finite": {"gda": [None, None, None]},
    "zeros": {"ssi-hg": [1.0, 1e-20, 0.0, 0.0], "eg+": [0.0, 0.0, 0.0, 0.0]},
    "only zeros": {"ssi-hg": [0.0, 0.0]},
    "below rounding": {"ssi-hg": [10.0**-k for k in range(0, 300, 10)]},
    "one row": {"ssi-hg": [1.0]},
    "one row among others": {"gda": [1.0], "ssi-hg": [1.0, 0.5, 0.25]},
    "two rows": {"ssi-hg": [1.0, 1.0]},
    "no rows": {"ssi-hg": [], "gda": [1.0, 0.5]},
    "no rows at all": {"ssi-hg": []},
    "every method": {name: [1.0, 0.5, 0.25] for name in LOOKS},
}


@pytest.mark.parametrize("case", STRANGE)
def test_strange_histories(tmp_path: Path, case: str) -> None:
    unknown = {"saddle_norm_squared": None, "distance": None, "theta": None, "sigma": None}
    folder = write_solve(tmp_path / "out", STRANGE[case], changes=dict.fromkeys(STRANGE[case], unknown))
    report_solve(folder)
    assert read_page(folder).count("<svg") == 2
    assert "not finite" in read_page(folder)


def test_a_history_without_columns_has_no_rows(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out")
    write_json(folder / "eg+" / "history.json", {"about": {}, "columns": {}})
    report_solve(folder)


def test_trajectories_may_leave_for_good(tmp_path: Path) -> None:
    ends = {"gda": ("1e200", "-1e250"), "mgda": ("inf", "0"), "eg+": ("nan", "nan"), "ssi-hg": ("9", "9")}
    ends["optimistic"] = ("1e308", "-1e308")
    folder = write_solve(tmp_path / "out", {name: [1.0, 0.5] for name in ends}, plane=True)
    for name, end in ends.items():
        write_path(folder / name, [*spiral(ITERATIONS - 1), end])
    report_solve(folder)


def test_a_field_without_solution_or_box_on_a_long_window(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", plane=True, changes={"eg+": {"iterations": 0}})
    grid = [10.0 * k for k in range(11)]
    zero_and_null: list[list[float | None]] = [[0.0, None, *[1.0] * 9]] * 11
    field = json.loads((folder / "field.json").read_text())
    field |= {"w": grid, "dw": zero_and_null, "ddelta": zero_and_null, "solution": None, "box": None}
    write_json(folder / "field.json", field)
    assert folder / "trajectories.svg" in report_solve(folder)


def test_reporting_does_not_import_torch() -> None:
    code = "import sihg.report.solve_report, sys; assert not {'torch', 'matplotlib.pyplot'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
