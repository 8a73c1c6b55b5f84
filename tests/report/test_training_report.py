"""The report on training runs: files, numbers, page."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sihg.report.figures.learning_curves import tracks
from sihg.report.read.runs import compare_settings, group_trials, read_run, run_folders
from sihg.report.tables.table import radius_text
from sihg.report.training_report import report_training
from tests.report.folders import (
    attack_row,
    numbers,
    read_csv,
    read_page,
    rows,
    write_curve,
    write_evaluation,
    write_gallery,
    write_memory,
    write_run,
)

EVIL = '<script>alert("1")</script> & $x_{$'
FIGURES = [f"{name}.{kind}" for name in ("curves", "training", "curves-best") for kind in ("svg", "pdf")]
TABLES = [f"{name}.{kind}" for name in ("table", "runs") for kind in ("csv", "md", "tex")]


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few pixels, which is faster."""
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


def test_one_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first")
    written = report_training(run)
    assert written == [*(run / "report" / name for name in (*FIGURES, *TABLES)), run / "index.html"]
    assert ElementTree.parse(run / "report" / "curves.svg").getroot().tag.endswith("svg")
    assert (run / "report" / "curves.pdf").read_bytes().startswith(b"%PDF")
    page = read_page(run)
    assert "<h1>first</h1>" in page
    assert "msi-hg training of small-cnn on digits." in page
    for text in ("ε = 0.25", "seed 0", "3.11.2", "[optimizer]\nname = &#34;sgd&#34;"):
        assert text in page
    assert "Warnings" not in page
    assert "Evaluations" not in page


def test_tables_hold_the_numbers_of_the_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", eps=8 / 255)
    write_run(tmp_path / "b", rows([0.9], [0.0], passes=1), method="natural", epochs=4)
    report_training(tmp_path)
    a, b = read_csv(tmp_path)
    assert (a["run"], a["method"], a["data"], a["model"]) == ("a", "msi-hg", "digits", "small-cnn")
    assert float(a["eps"]) == 8 / 255
    assert (a["epochs"], a["epochs_asked"], b["epochs"], b["epochs_asked"]) == ("3", "3", "1", "4")
    assert [float(a[key]) for key in ("training_accuracy", "held_out_natural", "held_out_robust")] == [0.53, 0.85, 0.4]
    assert [float(a[key]) for key in ("best_natural", "best_robust", "best_epoch")] == [0.9, 0.45, 2]
    assert [float(a[key]) for key in ("passes", "seconds")] == [18, 3.75]
    assert float(b["best_robust"]) == 0.0
    assert {8 / 255, 0.85, 0.4, 0.9, 0.45, 18.0, 3.75} <= numbers(read_page(tmp_path))
    markdown = (tmp_path / "report" / "runs.md").read_text(encoding="utf-8")
    line = "| a | msi-hg | digits | small-cnn | linf | 8/255 | 3 | 3 | 18 | 3.75 | 53.00 | 85.00 | 40.00 | 90.00 | "
    line += "45.00 | 2 |"
    assert line in markdown.splitlines()
    assert len({line.count(" | ") for line in markdown.splitlines()}) == 1


def test_settings_are_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", tau=0.125)
    write_run(tmp_path / "b", method="pgd", environment={"python": "3.12.0", "threads": 2})
    runs = [read_run(path) for path in run_folders(tmp_path)]
    common, different = compare_settings(runs)
    assert different == {"tau": [0.125, None], "method.name": ["msi-hg", "pgd"]}
    assert common["optimizer.lr"] == 0.05
    report_training(tmp_path)
    page = read_page(tmp_path)
    for text in ("Settings that differ", "method.name", "Settings of all runs", "optimizer.lr", "3.11.2 / 3.12.0"):
        assert text in page
    assert page.count("<summary>") == 4  # LaTeX, the best so far, two configs
    start = page.index("<table ", page.index("<h2>Settings that differ"))
    table = ElementTree.fromstring(page[start : page.index("</table>", start)] + "</table>")
    cells = [["".join(cell.itertext()).strip() for cell in row] for row in table.iter("tr")]
    assert cells == [["entry", "tau", "method.name"], ["a", "0.125", "msi-hg"], ["b", "—", "pgd"]]


def test_warnings_and_unfinished_runs_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", epochs=5, warnings=["lower tau"])
    report_training(run)
    page = read_page(run)
    assert '<li>lower tau <span class="quiet">(a)</span></li>' in page
    assert '<details class="warnings">' in page
    assert "3 of 5 epochs done so far" in page


def test_warnings_that_differ_in_numbers_are_shown_once(tmp_path: Path) -> None:
    for name, share in {"a": 31.5, "b": 30, "c": 30}.items():
        write_run(tmp_path / name, warnings=[f"{share}% lost: lower tau", "all lost"])
    write_run(tmp_path / "d", warnings=["1% lost: lower tau", "2% lost: lower tau"])
    report_training(tmp_path)
    page = read_page(tmp_path)
    found = re.findall('<li>(.*?) <span class="quiet">[(](.*?)[)]</span></li>', page)
    assert found == [
        ("31.5% lost: lower tau (a; the others have other numbers)", "all"),
        ("all lost", "a, b, c"),
        ("2% lost: lower tau", "d"),
    ]


def test_without_held_out_samples_the_training_accuracy_is_drawn(tmp_path: Path) -> None:
    none: Sequence[float | None] = [None, None]
    seen = tracks(group_trials([read_run(write_run(tmp_path / "a", rows(none, none)))])[0], "passes")
    assert [track.kind for track in seen] == ["accuracy"]
    assert seen[0].x.tolist() == [6, 12]
    assert seen[0].y.tolist() == [0.51, 0.52]
    run = read_run(write_run(tmp_path / "b", rows([0.5, None, 0.75], [0.25, None, 0.5])))
    assert [(t.kind, t.x.tolist(), t.y.tolist()) for t in tracks(group_trials([run])[0], "step")] == [
        ("natural", [26, 78], [0.5, 0.75]),
        ("robust", [26, 78], [0.25, 0.5]),
    ]
    report_training(tmp_path)
    assert "held_out_robust" in read_csv(tmp_path)[0]
    report_training(tmp_path / "a")
    assert "held_out_robust" not in read_csv(tmp_path / "a")[0]


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    name = EVIL.replace("/", "")
    settings: dict[str, Any] = dict.fromkeys(("data", "model", "norm", EVIL), EVIL)
    run = write_run(
        tmp_path / name,
        method=EVIL,
        warnings=[EVIL, "\udcff"],
        environment={"python": EVIL},
        **settings,
    )
    texts: dict[str, Any] = dict.fromkeys(("checkpoint", "data", "norm", "rule"), EVIL)
    doubts = [{"name": EVIL, "result": "warning", "message": EVIL}]
    write_evaluation(run, **texts, attacks=[attack_row(EVIL, 0.5, remark=EVIL)], checks=doubts)
    write_curve(run, EVIL, data=EVIL, norm=EVIL)
    write_memory(run)
    write_gallery(run, classes=[EVIL, "b"], attack=EVIL)
    write_run(tmp_path / "other")
    for folder in (run, tmp_path):
        report_training(folder)
        assert read_page(folder).count("&lt;script&gt;") >= 10
        files = [*folder.glob("report/*.md"), *folder.glob("report/*.svg"), folder / "index.html"]
        assert len(files) == 3 + 7 + 1
        for file in files:
            assert file.read_text(encoding="utf-8").count("<script") == (file.suffix == ".html")  # ours
        for file in folder.glob("report/*.tex"):
            assert "<" not in file.read_text(encoding="utf-8")
            assert r"\textless{}script\textgreater{}" in file.read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    report_training(tmp_path)
    page = read_page(tmp_path)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_evaluation(write_run(tmp_path / "b"))
    first = {path: path.read_bytes() for path in report_training(tmp_path)}
    assert {path: path.read_bytes() for path in report_training(tmp_path)} == first


def test_a_radius_is_written_in_pixels() -> None:
    radii = [8 / 255, 4 / 255, 0.25, 0.4, 0.3, 0.2, 1.0, 0.0, 0.0123456789]
    assert [radius_text(eps) for eps in radii] == ["8/255", "4/255", "0.25", "0.4", "0.3", "0.2", "1", "0", "0.0123457"]


def test_reporting_does_not_import_torch() -> None:
    code = "import sihg.report.training_report, sys; assert not {'torch', 'matplotlib.pyplot'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
