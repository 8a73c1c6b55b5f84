"""The files that docs/extending.md shows are written to a folder and used by the commands it names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.store.tables import read_table
from tests.robust.small import records

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
TRAIN = ["train", "--data", "my_data.py:load", "--model", "my_model.py:make", "--method", "my_method.py:Momentum"]
TRAIN += [
    "--decay",
    "0.8",
    "--eps",
    "0.2",
    "--epochs",
    "3",
    "--log",
    "my_logger.py:Losses",
    "--batch-size",
    "50",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_a_file_for_each_part() -> None:
    assert {name.removeprefix("my_").removesuffix(".py") for name in FILES} == {
        *("method", "attack", "data", "model", "logger", "problem"),
    }


def test_train_and_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--out", "run"]) == 0
    assert "epoch 3: " in capsys.readouterr().out
    assert float(read_table(Path("run/metrics.csv"))[-1]["gradient_norm"]) > 0
    assert main(["evaluate", "run", "--attacks", "natural,my_attack.py:Corners"]) == 0
    assert "my_attack.py:Corners" in capsys.readouterr().out


def test_a_killed_run_resumes_bitwise(folder: Path) -> None:
    assert main([*TRAIN, "--out", "whole"]) == 0
    kill = "import os, signal\nfrom my_logger import Losses\n\n\nclass Kill(Losses):\n    def __call__(self, event):\n"
    kill += "        if getattr(event, 'step', 0) == 7:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
    (folder / "kill.py").write_text(kill, encoding="utf-8")
    command = [sys.executable, "-m", "sihg", *TRAIN, "--log", "kill.py:Kill", "--out", "killed"]
    assert subprocess.run(command, check=False, capture_output=True, env=os.environ).returncode == -9
    assert main(["resume", "killed"]) == 0
    assert records(folder / "killed") == records(folder / "whole")


def test_a_method_refuses_a_model_in_its_own_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = (
        "    def check(self, model, sample, **_):\n        raise InputError('the model has no stem: use small-cnn')\n"
    )
    method = (folder / "my_method.py").read_text(encoding="utf-8")
    text = "from sihg.errors import InputError\n" + method.replace("    def step(", f"{check}\n    def step(")
    (folder / "my_method.py").write_text(text, encoding="utf-8")
    assert main([*TRAIN, "--out", "runs/mine"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "sihg: error: the model has no stem: use small-cnn"


def test_solve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "my_problem.py:make", "--method", "ssi-hg,gda", "--iterations", "50"]) == 0
    assert "gda" in capsys.readouterr().out
