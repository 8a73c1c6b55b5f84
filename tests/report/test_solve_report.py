import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from sihg.errors import InputError
from sihg.report.figures._thin import spaced, thinned
from sihg.report.figures.labels import apart
from sihg.report.figures.phase_plane import leaving, reachable
from sihg.report.read.palette import LOOKS, OTHERS, look
from sihg.report.read.solves import Curve, read_solved
from sihg.report.solve_report import report_solve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = '<script>alert("1")</script> & $x_{$'


def entry(method: str, **changes: Any) -> dict[str, Any]:
    return {
        "method": method,
        "iterations": 40,
        "w_gradients": 1234,
        "delta_gradients": 5678,
        "seconds": 1.25,
        "saddle_norm_squared": 1.5e-9,
        "distance": 3.25e-5,
        "sigma": 0.375,
        "tau": 0.0625,
        "theta": 1.0,
        "source": "Theorem 1 (general, n = 4, rho = 0.01)",
        "bound": None,
        "stopped": "40 iterations done",
        "warnings": [],
    } | changes


def columns(values: list[float | None], every: int = 1) -> dict[str, list[Any]]:
    k = [every * i for i in range(len(values))]
    return {
        "iteration": k,
        "w_gradients": [2 * i for i in k],
        "delta_gradients": k,
        "seconds": [0.01 * i for i in k],
        "saddle_norm_squared": values,
    }


Histories = dict[str, list[float | None]]
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a folder as `sihg solve --out` leaves it."""

    def build(histories: Histories | None = None, *, plane: bool = False, changes: Any = (), **summary: Any) -> Path:
        decay: list[float | None] = [2.0 / (k + 1) ** 2 for k in range(41)]
        histories = histories or {"ssi-hg": decay, "eg+": [v and v / 3 for v in decay]}
        folder = tmp_path / "out"
        for name, values in histories.items():
            (folder / name).mkdir(parents=True)
            history = {"about": {}, "columns": columns(values)}
            (folder / name / "history.json").write_text(json.dumps(history), encoding="utf-8")
            if plane:
                rows = "".join(f"{k},{np.cos(k) / (k + 1)},{np.sin(k) / (k + 1)}\n" for k in range(len(values)))
                (folder / name / "trajectory.csv").write_text("iteration,w,delta\n" + rows)
        dimension = 1 if plane else 8
        content = {
            "problem": "forsaken",
            "about": "A test.",
            "options": {"weight": 0.1, "start": None},
            "n": 4,
            "dimension_w": dimension,
            "dimension_delta": dimension,
            "seed": 7,
            "iterations": 40,
            "command": "sihg solve forsaken --out out",
            "environment": {"python": "3.11.2"},
            "methods": [entry(name, **dict(changes).get(name, {})) for name in histories],
        } | summary
        (folder / "summary.json").write_text(json.dumps(content), encoding="utf-8")
        if plane:
            grid = np.linspace(-1.5, 1.5, 11)
            w, delta = np.meshgrid(grid, grid)
            field = {"w": grid.tolist(), "delta": grid.tolist(), "dw": (-delta).tolist(), "ddelta": w.tolist()}
            field |= {"solution": [0, 0], "box": [-1.5, 1.5, -1.5, 1.5]}
            (folder / "field.json").write_text(json.dumps(field))
        return folder

    return build


def read_page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def numbers(page: str) -> list[float]:
    return [float(value) for value in re.findall(r'<data value="([^"]+)">', page)]


def test_everything_is_written(make: Make) -> None:
    folder = make()
    written = report_solve(folder)
    expected = ["convergence.svg", "convergence.png", "cost.svg", "cost.png", "table.csv", "table.md", "index.html"]
    assert [path.name for path in written] == expected
    assert all(path.parent == folder and path.stat().st_size > 100 for path in written)
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plane_problem_also_gets_its_trajectories(make: Make) -> None:
    folder = make(plane=True)
    written = [path.name for path in report_solve(folder)]
    assert "trajectories.svg" in written
    assert "trajectories.png" in written
    assert read_page(folder).count("<svg") == 3


def test_a_field_left_by_another_problem_is_not_used(make: Make) -> None:
    folder = make(plane=True, dimension_w=8, dimension_delta=8)
    assert not any("trajectories" in path.name for path in report_solve(folder))


def test_tables_hold_the_numbers_of_the_data(make: Make) -> None:
    folder = make(changes={"ssi-hg": {"bound": 20.0, "saddle_norm_squared": 1.23456789e-9}})
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


def test_the_bound_has_no_column_where_no_method_has_one(make: Make) -> None:
    folder = make()
    report_solve(folder)
    assert "guarantee" not in (folder / "table.csv").read_text(encoding="utf-8")
    assert "bound on it" not in read_page(folder)


def test_the_page_says_all_there_is(make: Make) -> None:
    folder = make(changes={"eg+": {"warnings": ["lower tau"]}})
    report_solve(folder)
    page = read_page(folder)
    for text in ("A test.", "lower tau", "weight", "3.11.2", "sihg solve forsaken --out out", "seed 7", "Theorem 1"):
        assert text in page


def test_text_from_outside_is_escaped(make: Make) -> None:
    everywhere = dict.fromkeys(("problem", "about", "command"), EVIL)
    evil_entry = {"warnings": [EVIL], "stopped": EVIL, "source": EVIL}
    folder = make(
        plane=True, changes={"ssi-hg": evil_entry}, options={EVIL: EVIL}, environment={EVIL: EVIL}, **everywhere
    )
    report_solve(folder)
    page = read_page(folder)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 10
    assert "<script" not in (folder / "convergence.svg").read_text(encoding="utf-8")
    assert "<script" not in (folder / "table.md").read_text(encoding="utf-8")


def test_a_method_may_have_any_name(make: Make) -> None:
    report_solve(
        make({"$x_{": [1.0, 0.5], "_hidden": [1.0, 0.2], "方法": [1.0, 0.1], "a" * 50: [1.0, 0.7]}, plane=True)
    )


def test_the_page_needs_nothing_but_itself(make: Make) -> None:
    folder = make(plane=True)
    report_solve(folder)
    page = read_page(folder)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_a_huge_figure_goes_in_as_png(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.report.page.html.LARGEST_SVG", 1000)
    folder = make()
    report_solve(folder)
    assert read_page(folder).count('src="data:image/png;base64,') == 2
    assert "<svg" not in read_page(folder)


def test_the_same_input_gives_the_same_bytes(make: Make) -> None:
    folder = make(plane=True)
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
def test_strange_histories(make: Make, case: str) -> None:
    unknown = {"saddle_norm_squared": None, "distance": None, "theta": None, "sigma": None}
    folder = make(STRANGE[case], changes=dict.fromkeys(STRANGE[case], unknown))
    report_solve(folder)
    assert read_page(folder).count("<svg") == 2
    assert "not finite" in read_page(folder)


def test_a_history_without_columns_has_no_rows(make: Make) -> None:
    folder = make()
    (folder / "eg+" / "history.json").write_text('{"about": {}, "columns": {}}')
    report_solve(folder)


def test_trajectories_may_leave_for_good(make: Make) -> None:
    ends = {"gda": "1e200,-1e250", "mgda": "inf,0", "eg+": "nan,nan", "optimistic": "1e308,-1e308", "ssi-hg": "9,9"}
    folder = make({name: [1.0, 0.5] for name in ends}, plane=True)
    for name, end in ends.items():
        with (folder / name / "trajectory.csv").open("a") as file:
            file.write(f"2,{end}\n")
    report_solve(folder)


def test_a_field_without_solution_or_box_on_a_long_window(make: Make) -> None:
    folder = make(plane=True)
    grid = [10.0 * k for k in range(11)]
    zero_and_null: list[list[float | None]] = [[0.0, None, *[1.0] * 9]] * 11
    field = json.loads((folder / "field.json").read_text())
    field |= {"w": grid, "dw": zero_and_null, "ddelta": zero_and_null, "solution": None, "box": None}
    (folder / "field.json").write_text(json.dumps(field))
    (folder / "eg+" / "trajectory.csv").write_text("iteration,w,delta\n")
    assert folder / "trajectories.svg" in report_solve(folder)


def test_errors_name_the_file_and_the_remedy(make: Make, tmp_path: Path) -> None:
    folder = make(plane=True)

    def complaint(change: Callable[[], object], path: Path) -> str:
        before = path.read_bytes()
        change()
        with pytest.raises(InputError) as caught:
            report_solve(folder)
        path.write_bytes(before)
        text = str(caught.value)
        assert str(path) in text
        assert "sihg solve" in text
        return text

    summary, history = folder / "summary.json", folder / "ssi-hg" / "history.json"
    path, field = folder / "ssi-hg" / "trajectory.csv", folder / "field.json"
    for file in (summary, history, path):
        complaint(file.unlink, file)
    for file in (summary, history, field):
        for damage in (b"{", b"[]", b"\xff\xfe"):
            complaint(partial(file.write_bytes, damage), file)
    complaint(lambda: path.write_text("iteration,w\n0,1\n"), path)
    complaint(lambda: path.write_text("iteration,w,delta\n0,1,x\n"), path)

    content = json.loads(summary.read_text())
    assert "lacks 'seed'" in complaint(lambda: _put(summary, content, "seed"), summary)
    assert "'n' cannot be 'four'" in complaint(lambda: _put(summary, content, "n", "four"), summary)
    assert "no methods" in complaint(lambda: _put(summary, content, "methods", []), summary)
    complaint(lambda: _put(summary, content, "methods", [3]), summary)
    complaint(lambda: _put(summary, content, "methods", [entry("../ssi-hg")]), summary)
    complaint(lambda: _put(summary, content, "methods", [entry("ssi-hg", distance="far")]), summary)

    rows = columns([1.0, 0.5])
    wrong: list[tuple[str, Any]] = [("iteration", [0, 0]), ("w_gradients", [0]), ("saddle_norm_squared", ["x", "y"])]
    for name, value in wrong:
        complaint(partial(_put, history, {}, "columns", rows | {name: value}), history)

    grid = json.loads(field.read_text())
    wrong = [("w", [0, 1]), ("w", [0] * 11), ("solution", [1]), ("box", [0, 1, None, 1])]
    for name, value in wrong:
        complaint(partial(_put, field, grid, name, value), field)
    report_solve(folder)

    with pytest.raises(InputError, match=re.escape(str(tmp_path / "nowhere" / "summary.json"))):
        report_solve(tmp_path / "nowhere")


def _put(path: Path, content: dict[str, Any], key: str, *value: Any) -> None:
    rest = {k: v for k, v in content.items() if k != key}
    path.write_text(json.dumps(rest | ({key: value[0]} if value else {})))


def test_the_running_average_is_exact_where_all_is_recorded_and_for_lines_elsewhere() -> None:
    values = np.array([9.0, 4.0, 1.0, 7.0])
    every = Curve(np.arange(4.0), np.arange(4.0), values)
    np.testing.assert_allclose(every.mean[1:], [4, 5 / 2, 12 / 3])
    k = np.array([0.0, 10.0, 30.0])
    line = Curve(k, k, 100 - k)
    np.testing.assert_allclose(line.mean[1:], [np.mean(100 - np.arange(1, 11)), np.mean(100 - np.arange(1, 31))])
    assert Curve(k, k, np.array([np.inf, 1.0, np.inf])).mean.tolist() == [np.inf, np.inf, np.inf]
    assert Curve(np.arange(3.0), k, np.array([np.inf, 1.0, 3.0])).mean.tolist() == [np.inf, 1, 2]


def test_what_is_read_is_what_was_written(make: Make) -> None:
    solved = read_solved(make(plane=True))
    assert [run.method for run in solved.methods] == ["ssi-hg", "eg+"]
    run = solved.methods[0]
    assert run.curve.gradients[-1] == 3 * 40
    assert run.path is not None
    assert run.path.shape == (41, 2)
    assert solved.field is not None
    assert solved.field.solution == (0, 0)


def test_names_keep_their_order_and_distance() -> None:
    assert apart([0.2, 0.5, 0.9], 0.1) == pytest.approx([0.2, 0.5, 0.9])
    assert apart([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert apart([0.0, 0.0, 1.0, 1.0], 0.1) == pytest.approx([0.0, 0.1, 0.9, 1.0])
    assert apart([], 0.1) == []


def test_paths_are_cut_where_they_leave() -> None:
    window = (-1.0, 1.0, -1.0, 1.0)
    path = np.array([[0.0, 0.0], [1e200, 1e200], [1e250, 0.0]])
    cut = reachable(path, window)
    assert np.isnan(cut[2]).all()
    assert cut[1][0] == cut[1][1] <= 1e3
    assert leaving(cut[:2], window) == pytest.approx([1, 1])
    assert leaving(np.array([[0.0, 0.0], [0.0, -4.0]]), window) == pytest.approx([0, -1])
    assert leaving(np.array([[5.0, 0.0], [6.0, 0.0]]), window) == pytest.approx([1, 0])
    assert leaving(np.array([[5.0, 0.0], [0.5, 0.0]]), window) is None


def test_long_curves_are_thinned_but_keep_their_extremes() -> None:
    x = np.arange(1.0, 200_001)
    y = np.ones_like(x)
    y[123_456], y[123_457] = 1e9, 1e-9
    kept = thinned(x, y)
    assert len(kept) < 2100
    assert {0, 123_456, 123_457, 199_999} <= set(kept.tolist())
    nan = float("nan")
    path = np.array([[0, 0], [0, 0.01], [0, 1], [nan, nan], [nan, nan], [0, 1], [0, 1.01]])
    assert spaced(path, 0.1).tolist() == [0, 2, 3, 5, 6]
    assert spaced(np.empty((0, 2)), 0.1).tolist() == []


def test_a_method_looks_the_same_everywhere() -> None:
    looks = [*LOOKS.values(), *OTHERS]
    assert len({one.colour for one in looks}) == len({one.marker for one in looks}) == len(looks)
    assert look("ssi-hg") == LOOKS["ssi-hg"]
    assert look("my-method") == look("my-method")
    assert look("my-method") in OTHERS


def test_reporting_does_not_import_torch() -> None:
    code = "import sihg.report.solve_report, sys; assert not {'torch', 'matplotlib.pyplot'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_the_page(make: Make, tmp_path: Path) -> None:
    folder = make(plane=True)
    report_solve(folder)
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    result = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", *quiet),
            f"--user-data-dir={tmp_path / 'profile'}",
            *("--virtual-time-budget=2000", "--dump-dom"),
            (folder / "index.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    dom = result.stdout
    assert dom.count("<table>") == 2
    assert dom.count("<svg") == 3
    assert '<data value="5678">5,678</data>' in dom
    assert "<h1>forsaken</h1>" in dom
