"""`sihg report` as people use it."""

from pathlib import Path

import pytest

from sihg.cli.main import main
from tests.report.folders import write_checkpoint, write_run


def test_a_run_and_a_folder_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", method="pgd")
    assert main(["report", str(run), str(tmp_path / "runs")]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.parent for path in written} == {run, run / "report", tmp_path / "runs", tmp_path / "runs" / "report"}
    assert [path.name for path in written].count("index.html") == 2
    assert all(path.stat().st_size > 0 for path in written)


def test_a_folder_is_reported_on_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a")
    assert main(["report", str(run)]) == 0
    (run / "metrics.csv").unlink()
    assert main(["report", str(run)]) == 0
    assert "0 of 3 epochs done so far" in (run / "index.html").read_text(encoding="utf-8")
    assert capsys.readouterr().err == 2 * f"look at {run / 'index.html'}\n"  # no warning


def test_wrong_folders_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "runs" / "a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    wrong = {
        "empty": "has no results (summary.json of a solve, config.toml of a run, evaluation/*.json,",
        "file": "is not a folder (it is a file)",
        "nowhere": "is not a folder (it does not exist)",
    }
    for name, complaint in wrong.items():
        assert main(["report", str(run), str(tmp_path / name)]) == 2
        captured = capsys.readouterr()
        assert f"{tmp_path / name} {complaint}" in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
    assert not (run / "index.html").exists()


def test_watching_and_loggers_are_refused_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(write_run(tmp_path / "a")), "--watch", "--log", "tensorboard"]) == 2
    assert "leave out --log, or --watch" in capsys.readouterr().err


def test_a_run_without_its_last_lines_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a")
    write_checkpoint(run)
    metrics = run / "metrics.csv"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    assert main(["report", str(run)]) == 2
    error = capsys.readouterr().err
    assert str(metrics) in error
    assert error.endswith("[table-too-short]\n")
    assert not (run / "index.html").exists()


def test_a_broken_solve_is_a_solve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == 2
    assert "summary.json" in capsys.readouterr().err
