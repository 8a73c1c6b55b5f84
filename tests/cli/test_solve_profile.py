"""`sihg solve` on several problems, and the conditions of the theories."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.cli.main import main
from tests.cli.test_solve import wait_for
from tests.refused import refused

SMALL = ["solve", "weak-mvi,matrix-game", "--method", "gda,eg+", "--passes", "30"]


def test_table_json_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    out = capsys.readouterr().out
    assert "shares of 2 tasks" in out
    assert "│ eg+" in out
    assert main([*SMALL, "--json", "--reduction", "1/100", "--seed", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["reduction"] == 0.01
    assert [cell["method"] for cell in found["cells"]] == ["gda", "eg+"] * 2
    words = found["command"].split()
    assert words[:3] == ["sihg", "solve", "weak-mvi,matrix-game"]
    assert main([*words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == found["cells"]


def test_a_problem_from_random_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "ratio-game", "--method", "gda", "--starts", "3", "--passes", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["start"] for run in found["cells"][0]["runs"]] == [0, 1, 2]


def test_out_is_continued_by_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert f"report: {tmp_path / 'out' / 'index.html'}" in capsys.readouterr().err
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").rglob("*.json")}
    assert len(cells) == 4
    assert main([*words[:3], "gda,eg+,mgda", *words[4:]]) == 0
    assert {path: path.stat().st_mtime_ns for path in cells} == cells
    assert main(["report", str(tmp_path / "out")]) == 0
    assert main(["check", str(tmp_path / "out")]) == 0


def test_an_interrupt_says_how_to_continue(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["solve", "weak-mvi,global-forsaken", "--method", "eg+,gda", "--passes", "1e6", "--out", str(out)]
    code = "import sys; from sihg.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True) as process:
        wait_for(out / "cells" / "weak-mvi" / "eg+.json", process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "to continue: the same command" in errors
    assert [path.name for path in (out / "cells").rglob("*.json")] == ["eg+.json"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--iterations", "5"], "iterations"),
        (["--set", "n=2"], "set"),
        (["--steps", "adaptive"], "steps"),
        (["--overwrite"], "overwrite"),
    ],
)
def test_settings_of_one_problem_are_refused(words: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 2
    assert f"has no --{name}" in capsys.readouterr().err


def test_a_budget_of_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "weak-mvi", "--method", "gda,ssi-hg@adaptive", "--gradients", "100", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    spent = [row["w_gradients"] + row["delta_gradients"] for row in summary["methods"]]
    assert spent[0] == 100 <= spent[1]
    assert summary["command"] == "sihg solve weak-mvi --method gda,ssi-hg@adaptive --gradients 100 --seed 0"


def test_conditions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "--conditions"]) == 0
    out = capsys.readouterr().out
    for number in ("0.0628", "0.0208", "0.0199", "0.00269", "0.25"):
        assert number in out
    assert main(["solve", "weak-mvi", "--set", "b=-0.1", "--conditions", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["L12"], found["L11"]) == (1, 1.0, 0.1)
    assert found["rho"] == pytest.approx(0.2 / 1.01)
    numbers = {row["theory"].split(" (")[0]: row["rho"]["rho"] for row in found["theories"]}
    assert numbers["Theorem 1, general"] < found["rho"] < numbers["Diakonikolas, Daskalakis and Jordan 2021"]
    assert main(["solve", "weak-mvi", "--set", "b=-0.1", "--conditions"]) == 0
    out = capsys.readouterr().out
    assert [line.split("│")[-2].strip() for line in out.splitlines() if "Cevher" in line or "ssi-hg" in line] == [
        *("no", "no"),  # Theorem 1
        *("yes", "yes"),  # 2022 and 2025
    ]


def test_watching_a_profile_is_refused(tmp_path: Path) -> None:
    from sihg.report.watch import check_watch

    (tmp_path / "profile.json").write_text("{}")
    with refused("watch-solve", folder=tmp_path):
        check_watch([tmp_path], 5)
