"""`sihg doctor` and the machine that it describes."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.experiments import machine


def test_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "probe", lambda code: "work" if "bfloat16" in code else "killed by SIGILL")
    monkeypatch.setattr(machine, "measure_bfloat16", lambda: 2.0)
    assert main(["doctor", "--json", "--data-dir", str(tmp_path / "none")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions and hardware"]["torch"] == version("torch")
    assert found["convolutions"] == {"bfloat16": "work", "half": "killed by SIGILL"}
    assert (found["data"]["digits"], found["data"]["mnist"]) == ("bundled", "absent")
    assert found["free gigabytes"]["data folder"] > 0
    assert any("--precision auto" in text for text in found["advice"])
    assert any("sihg data get" in text for text in found["advice"])
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "half           killed by SIGILL" in shown
    assert "- convolutions in bfloat16 are 2.0 times as fast here" in shown


def test_bfloat16_is_measured_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    speedup = machine.measure_bfloat16()
    assert speedup is None or speedup > 0
    monkeypatch.setattr(machine, "SPEED", "raise ValueError('no')")
    assert machine.measure_bfloat16() is None


def test_probes_run_in_their_own_process() -> None:
    assert machine.probe("pass") == "work"
    assert machine.probe("raise ValueError('no')") == "fail (ValueError: no)"
    if sys.platform != "win32":
        assert machine.probe("import os, signal; os.kill(os.getpid(), signal.SIGILL)") == "killed by SIGILL"
