"""Runs side by side, from Python."""

from pathlib import Path

import pytest

from sihg.report import compare
from sihg.report.tables.run_comparison import AttackAccuracy
from tests.refused import refused
from tests.report.folders import attack_row, read_csv, read_page, rows, write_evaluation, write_run


def test_numbers_and_settings_of_each_run(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", rows([0.7, 0.9, 0.85], [0.1, 0.45, 0.4]), tau=0.5)
    second = write_run(tmp_path / "b", rows([0.6], [None]), method="pgd", epochs=4)
    write_evaluation(first)
    comparison = compare([first, str(second)])
    a, b = comparison.runs
    assert (a.run, a.method, a.epochs, a.of, a.folder) == ("a", "msi-hg", 3, 3, str(first))
    assert (a.last.epoch, a.last.natural, a.last.robust) == (3, 0.85, 0.4)
    assert (a.best.epoch, a.best.natural, a.best.robust) == (2, 0.9, 0.45)
    assert a.evaluations["pgd-20"] == AttackAccuracy(accuracy=0.4375, low=0.4, high=0.5, samples=397)
    assert (a.passes, a.seconds) == (18, 3.75)
    assert a.settings == {"method.name": "msi-hg", "epochs": 3, "tau": 0.5}
    assert b.settings == {"method.name": "pgd", "epochs": 4, "tau": None}
    assert (b.last.robust, b.best.robust, b.evaluations) == (None, None, {})
    assert comparison.means.rows == comparison.differences.rows == []
    assert comparison.notes == ()


def test_text_has_every_table(tmp_path: Path) -> None:
    for method, value in (("msi-hg", 0.25), ("pgd", 0.5)):
        for seed in range(3):
            run = write_run(tmp_path / f"{method}-s{seed}", method=method, seed=seed)
            write_evaluation(run, attacks=[attack_row("pgd-20", value + 0.25 * seed, 9)])
    comparison = compare(tmp_path)
    titles = list(comparison.tables())
    assert titles[1:] == [
        "settings that differ",
        "mean ± deviation over the seeds",
        "differences of the means, with 95 % intervals (Welch)",
    ]
    text = str(comparison).replace("\N{NO-BREAK SPACE}", " ")
    assert all(title in text for title in titles)
    assert "| msi-hg | 3 | 50.00 ± 25.00 |" in text
    assert "| pgd | msi-hg | pgd-20 | 25.00 |" in text
    assert comparison.as_dict()["differences"] == [
        {"entry": "pgd", "less": "msi-hg", "attack": "pgd-20", "difference": 0.25}
        | {"low": pytest.approx(-0.3167, abs=1e-4), "high": pytest.approx(0.8167, abs=1e-4)}
    ]


def test_equal_runs_differ_in_nothing(tmp_path: Path) -> None:
    comparison = compare([write_run(tmp_path / "a"), write_run(tmp_path / "b")])
    assert comparison.notes == ("no setting differs",)
    assert len(comparison.tables()) == 1


def test_a_page_goes_into_a_folder(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", eps=0.1)]
    (tmp_path / "file").write_text("")
    with refused("report-out-is-a-file", out=tmp_path / "file"):
        compare(runs, tmp_path / "file")
    compare(runs, tmp_path / "out")
    assert "Settings that differ" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    with refused("no-runs", folder=tmp_path / "out" / "report"):
        compare(tmp_path / "out" / "report")


def test_attacks_have_the_order_of_the_report(tmp_path: Path) -> None:
    write_evaluation(write_run(tmp_path / "a"), attacks=[attack_row("pgd-20", 0.5), attack_row("all", 0.5)])
    write_evaluation(write_run(tmp_path / "b"), attacks=[attack_row("fgsm", 0.5), attack_row("natural", 0.75)])
    comparison = compare(tmp_path)
    assert comparison.attacks == ("natural", "pgd-20", "fgsm", "all")
    headings = [column.heading for column in next(iter(comparison.tables().values())).columns]
    assert headings[5:9] == ["clean %", "pgd-20 %", "fgsm %", "all %"]


def test_a_setting_that_one_run_lacks_differs(tmp_path: Path) -> None:
    comparison = compare([write_run(tmp_path / "a", noise="none"), write_run(tmp_path / "b")])
    assert [run.settings for run in comparison.runs] == [{"noise": "none"}, {"noise": None}]


def test_rows_within_different_balls_say_which(tmp_path: Path) -> None:
    balls = {"a": ("linf", 0.25), "b": ("linf", 8 / 255), "c": ("l2", 1.0)}
    for name, (norm, eps) in balls.items():
        for seed in range(2):
            folder = write_run(tmp_path / f"{name}-{seed}", norm=norm, eps=eps, seed=seed)
            write_evaluation(folder, norm=norm, eps=eps, attacks=[attack_row("pgd-20", 0.5)])
    found = compare([tmp_path / f"{name}-0" for name in balls])
    assert [run.ball for run in found.runs] == ["linf, eps 0.25", "linf, eps 8/255", "l2, eps 1"]
    assert all(run.ball in str(found) for run in found.runs)
    means = compare(tmp_path, tmp_path / "page").tables()["mean (lowest - highest) over the seeds"]
    assert [column.heading for column in means.columns][:3] == ["entry", "norm", "ε"]
    assert {tuple(row[1:3]) for row in means.rows} == {("linf", "0.25"), ("linf", "8/255"), ("l2", "1")}
    of_runs = {(row["norm"], float(row["eps"])) for row in read_csv(tmp_path / "page", "runs")}
    assert of_runs == set(balls.values())
    assert "<td>l2</td>" in read_page(tmp_path / "page")


def test_one_ball_is_not_repeated_in_every_row(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    assert "ball" not in str(compare(runs))
