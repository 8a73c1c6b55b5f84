"""`sihg` alone: what is here, and what to try."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.cli.main import main
from tests.report.folders import write_evaluation, write_run


def test_with_nothing_here_it_says_how_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIHG_DATA", str(tmp_path / "data"))
    assert main([]) == 0
    shown = capsys.readouterr().out
    here = ("runs in ./runs: none yet", "digits comes with sihg", "mnist-fast")
    for text in (*here, "sihg reproduce digits", "sihg train --out"):
        assert text in shown
    assert 3 <= shown.partition("try:\n")[2].partition("\n\n")[0].count("\n") + 1 <= 4


def test_runs_are_listed_with_what_they_need_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIHG_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    write_evaluation(write_run(tmp_path / "runs" / "done"))
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.toml").write_text("[")
    begun = write_run(tmp_path / "runs" / "reproduce-digits" / "begun", epochs=5, method="pgd")
    later = 1.0 + max(path.stat().st_mtime for path in (tmp_path / "runs").rglob("metrics.csv"))
    os.utime(begun / "metrics.csv", (later, later))
    assert main([]) == 0
    shown = capsys.readouterr().out
    place = Path("runs")
    assert "runs in ./runs: 2" in shown
    assert f"{place / 'done'}: msi-hg on digits, 3 of 3 epochs, evaluated" in shown
    assert f"{place / 'reproduce-digits' / 'begun'}: pgd on digits, 3 of 5 epochs" in shown
    assert f"sihg resume {place / 'reproduce-digits' / 'begun'}" in shown
    assert "sihg compare runs" in shown
    assert "sihg reproduce" not in shown
    assert ": mnist" in shown


def test_it_loads_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "first")
    code = "import sys; from sihg.cli.main import main; main([])"
    code += "; sys.exit(bool({'torch', 'matplotlib'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
