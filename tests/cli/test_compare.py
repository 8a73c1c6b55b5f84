"""`sihg compare` as people use it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import ttest_ind

from sihg.cli.main import main
from sihg.report.training_report import report_training
from tests.report.folders import attack_row, rows, write_checkpoint, write_evaluation, write_run


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs, one of them evaluated."""
    a = write_run(tmp_path / "runs" / "a", rows([0.7, 0.9, 0.85], [0.1, 0.45, 0.4]))
    b = write_run(tmp_path / "runs" / "b", rows([0.6, 0.8], [0.2, 0.3], passes=11), method="pgd", eps=0.1, epochs=4)
    write_evaluation(a)
    return a, b


def line(out: str, start: str) -> list[str]:
    (found,) = [one for one in out.splitlines() if one.startswith(f"│ {start} ")]
    return [cell.strip() for cell in found.strip("│").split("│")]


def test_the_tables(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", *runs) == 0
    captured = capsys.readouterr()
    assert line(captured.out, "a") == [
        *("a", "msi-hg", "linf, eps 0.25", "3", "85.0 / 40.0", "90.0 / 45.0 (2)", "96.88", "43.75", "18.0", "3.8"),
    ]
    assert line(captured.out, "b") == [
        *("b", "pgd", "linf, eps 0.1", "2 of 4", "80.0 / 30.0", "80.0 / 30.0 (2)", "-", "-", "22.0", "2.5"),
    ]
    assert "accuracy on 397 test samples" in captured.out
    assert line(captured.out, "eps") == ["eps", "0.25", "0.1"]
    assert line(captured.out, "method.name") == ["method.name", "msi-hg", "pgd"]
    assert "│ data" not in captured.out
    assert "no setting differs" not in captured.out
    assert "held out" not in captured.out
    assert captured.err == f"next: sihg evaluate {runs[1]}\n"


def test_json_has_the_same(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", runs[0].parent, "--json") == 0  # the folder that holds them
    said = json.loads(capsys.readouterr().out)
    a, b = said["runs"]
    assert (a["ball"], b["ball"]) == ("linf, eps 0.25", "linf, eps 0.1")
    assert (a["run"], a["best"]) == ("a", {"epoch": 2, "natural": 0.9, "robust": 0.45})
    assert a["evaluations"]["pgd-20"] == {"accuracy": 0.4375, "low": 0.4, "high": 0.5, "samples": 397}
    assert (b["last"], b["evaluations"]) == ({"epoch": 2, "natural": 0.8, "robust": 0.3}, {})
    assert b["settings"] == {"method.name": "pgd", "eps": 0.1, "epochs": 4}
    assert said["report"] is None


def test_a_page(runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", *runs, "--out", tmp_path / "new" / "place") == 0
    assert f"report: {tmp_path / 'new' / 'place' / 'index.html'}\n" in capsys.readouterr().err
    page = (tmp_path / "new" / "place" / "index.html").read_text(encoding="utf-8")
    assert "msi-hg" in page
    assert "pgd" in page
    assert not (runs[0] / "index.html").exists()
    (tmp_path / "file").write_text("")
    assert run("compare", *runs, "--out", tmp_path / "file") == 2
    assert f"{tmp_path / 'file'} is a file" in capsys.readouterr().err


def test_runs_of_the_same_name_get_different_names(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "more" / "a", seed=1)
    again = runs[0] / ".." / "a"  # the same in other words
    assert run("compare", runs[0], other, again, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [(one["run"], one["settings"]) for one in said["runs"]] == [
        ("runs/a", {"seed": 0}),
        ("more/a", {"seed": 1}),
    ]


def test_seeds_are_averaged_and_entries_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, value in (("msi-hg", 0.25), ("pgd", 0.5)):
        for seed in range(3):
            run_folder = write_run(tmp_path / f"{method}-s{seed}", method=method, seed=seed)
            write_evaluation(run_folder, attacks=[attack_row("pgd-20", value + 0.25 * seed, 9)])
    assert run("compare", tmp_path) == 0
    out = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    assert line(out, "msi-hg") == ["msi-hg", "3", "50.00 ± 25.00", "18", "3.75"]
    low, high = ttest_ind([0.5, 0.75, 1.0], [0.25, 0.5, 0.75], equal_var=False).confidence_interval(0.95)
    interval = ["25.00", f"{100 * low:.2f}", f"{100 * high:.2f}"]
    last = [cell.strip() for cell in out.splitlines()[-2].strip("│").split("│")]
    assert last == ["pgd", "msi-hg", "pgd-20", *interval]
    assert run("compare", tmp_path, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    means = [(one["entry"], one["test pgd-20"], one["test pgd-20_n"]) for one in said["means"]]
    assert means == [("msi-hg", 0.5, 3), ("pgd", 0.75, 3)]
    bounds = {"low": pytest.approx(low), "high": pytest.approx(high)}
    assert said["differences"] == [{"entry": "pgd", "less": "msi-hg", "attack": "pgd-20", "difference": 0.25, **bounds}]


def test_seeds_of_one_entry_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        write_evaluation(write_run(tmp_path / f"m-s{seed}", seed=seed))
    assert run("compare", tmp_path) == 0
    out = capsys.readouterr().out
    assert "mean over the seeds" not in out
    assert "mean (lowest - highest) over the seeds" in out
    assert "differences" not in out


def test_sizes_that_differ_are_shown(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(runs[1], samples=100, eps=0.1)
    assert run("compare", *runs) == 0
    out = capsys.readouterr().out
    assert line(out, "a")[6:8] == ["96.88 (n = 397)", "43.75 (n = 397)"]
    assert line(out, "b")[6:8] == ["96.88 (n = 100)", "43.75 (n = 100)"]


def test_folders_without_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run("compare", tmp_path / "none") == 2
    assert run("compare", tmp_path / "empty") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'none'} does not exist" in first
    assert f"{tmp_path / 'empty'} has no config.toml" in second


def test_the_longer_list_goes_down(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    more = [write_run(runs[0].parent / f"c-s{seed}", seed=seed) for seed in (1, 2)]
    assert run("compare", runs[0], *more) == 0  # three runs, one setting
    out = capsys.readouterr().out.partition("settings that differ")[2].partition("\nmean ")[0]
    assert "┃ run  ┃ seed ┃" in out
    assert [line(out, name) for name in ("a", "c-s1", "c-s2")] == [["a", "0"], ["c-s1", "1"], ["c-s2", "2"]]
    assert run("compare", runs[0], runs[0]) == 0
    assert "settings" not in capsys.readouterr().out


def test_seeds_of_one_setting_are_one_line(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    more = [write_run(runs[0].parent / f"c-s{seed}", seed=seed, tau=0.5) for seed in (1, 2)]
    assert run("compare", runs[0], *more) == 0
    out = capsys.readouterr().out.partition("settings that differ")[2].partition("\nmean ")[0]
    assert "seed" not in out
    assert [line(out, name) for name in ("a", "c-s1 and 1 more")] == [["a", "-"], ["c-s1 and 1 more", "0.5"]]


def test_figures_are_those_of_the_report(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    certified = attack_row("certified", 0.25, proof=True)
    write_evaluation(runs[0], "weaker", rule="last iterate")
    write_evaluation(runs[0], "proof", attacks=[certified])
    write_evaluation(runs[0], "harder", attacks=[attack_row("pgd-20", 0.375, 397)])
    assert run("compare", *runs, "--json") == 0
    found = json.loads(capsys.readouterr().out)["runs"][0]["evaluations"]
    report_training(runs[0].parent)
    with (runs[0].parent / "report" / "runs.csv").open(encoding="utf-8", newline="") as file:
        table = next(csv.DictReader(file))
    accuracies = {key.removeprefix("test "): float(table[key]) for key in table if key.startswith("test ")}
    assert {name: test["accuracy"] for name, test in found.items()} == accuracies
    assert list(accuracies.items()) == [
        ("natural", 0.96875),
        ("pgd-20", 0.375),
        ("pgd-20 (last iterate)", 0.4375),
        ("certified (proven)", 0.25),
    ]
    assert run("compare", *runs) == 0
    assert "proven: a lower bound" in capsys.readouterr().out


def test_records_of_other_weights_or_samples_are_refused(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write_checkpoint(runs[0])
    write_evaluation(runs[0], weights="last-00000078", sha256=manifest, contents="11")
    other = write_evaluation(runs[1], eps=0.1, contents="22")
    for command in ("compare", "report"):
        words = runs if command == "compare" else [runs[0].parent]
        assert run(command, *words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(other) in line
        assert line.endswith("[record-other-samples]")
    write_evaluation(runs[1], eps=0.1, contents="11")
    assert run("compare", *runs) == 0
    write_checkpoint(runs[0], threads=2)
    capsys.readouterr()
    for command in ("compare", "report"):
        assert run(command, runs[0]) == 2
        assert capsys.readouterr().err.endswith("[record-other-weights]\n")


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'matplotlib', 'rich', 'jinja2', 'msgspec'}"
    code = f"import sys, sihg.cli.compare, sihg.cli.report, sihg.report; sys.exit(repr({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr == "set()\n"
