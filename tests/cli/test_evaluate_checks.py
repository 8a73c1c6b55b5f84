"""`sihg evaluate` tells what its checks found."""

import json
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.robust.evaluation.diagnostics import ModelState
from sihg.store.schema import Check


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    words = ["--epochs", "2", "--samples", "200", "--validation", "20", "--steps", "2", "--width", "1/4"]
    words += ["--batch-size", "20"]
    assert main(["train", "--out", str(out), *words]) == 0
    return out


def test_the_command_tells_of_the_checks(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(trained), "--attacks", "natural,pgd-2", "--samples", "100"]
    assert main(words) == 0
    err = capsys.readouterr().err
    warned = [line for line in err.splitlines() if line.startswith("warning: ")]
    names = [line.rpartition("#")[2].rstrip(")") for line in warned]
    assert names[0] == "all-samples"
    assert names[-4:] == ["weak-attacks", "few-steps", "no-black-box", "other-attacks"]
    assert ", 0 errors, 1 not run" in err
    assert "\nnot run: black box: needs an attack of several gradient steps and one of none" in err
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    checks = {one["name"]: one["result"] for one in json.loads(captured.out)["checks"]}
    assert (checks["all samples"], checks["state"], checks["black box"]) == ("warning", "fine", "not run")
    doubtful = {name for name, result in checks.items() if result == "warning"}
    assert doubtful >= {"all samples", "weak attacks", "few steps", "no black box", "other attacks"}
    black_box = next(check for check in json.loads(captured.out)["checks"] if check["name"] == "black box")
    assert black_box["message"].startswith("needs an attack of several gradient steps")
    assert "checks: " in captured.err


def test_several_runs_have_their_names_in_the_checks(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = max(trained.glob("checkpoints/best-*"))
    assert main(["evaluate", str(trained), str(best), "--attacks", "natural", "--samples", "60"]) == 0
    err = capsys.readouterr().err
    for name in (str(trained), f"{trained} ({best.name})"):
        assert f"warning ({name}): 60 of 397 samples" in err
        assert f"checks ({name}): " in err
        assert f"not run ({name}): one step, radius, steps, runs, weak attacks, few steps, no black box" in err


def test_a_wrong_figure_is_a_failure(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelState, "check", lambda _self: Check("state", "error", "it has changed"))
    assert main(["evaluate", str(trained), "--attacks", "natural"]) == 2
    captured = capsys.readouterr()
    assert "natural" in captured.out  # the table is shown all the same
    assert captured.err.startswith("error: it has changed (docs/checks.md#state)\n")
    assert ", 1 error, " in captured.err


def test_what_is_evaluated_need_not_be_evaluated_next(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(trained), "--attacks", "natural", "--samples", "60"]) == 0
    capsys.readouterr()
    assert main(["resume", str(trained)]) == 0
    assert capsys.readouterr().err.endswith(f"next: sihg report {trained}\n")
