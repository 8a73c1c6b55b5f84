"""`sihg train` when torchrun starts it again; here in one process, with the variables that torchrun sets."""

from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.robust.training.trainer import Trainer
from sihg.store.run_folder import RunFolder
from sihg.store.verify import check_folder

TINY = (
    *("--epochs", "3", "--samples", "100", "--validation", "20", "--steps", "1", "--width", "1/4"),
    *("--checkpoint-minutes", "0", "--lanes", "2"),
)


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """With TORCHELASTIC_RUN_ID only where it is asked for: it would tie this process to its parent."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    another_launch(monkeypatch, "first")
    return monkeypatch


def run(*words: object) -> int:
    return main([str(word) for word in words])


def another_launch(launched: pytest.MonkeyPatch, name: str) -> None:
    launched.setattr("sihg.store.run_folder.launch_id", lambda: name)


def test_a_restart_continues_its_own_run_and_no_other(
    tmp_path: Path, launched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("train", "--out", out, *TINY) == 0
    assert "--overwrite" not in capsys.readouterr().err
    assert run("train", "--out", out, *TINY, "--overwrite") == 0
    said = capsys.readouterr().err
    assert "is already finished" in said
    assert f"--overwrite: the same launch made {out}, so its run is continued" in said
    another_launch(launched, "another")
    assert run("train", "--out", out, *TINY) == 2
    assert "[run-folder-exists]" in capsys.readouterr().err


def test_a_training_that_diverges_is_not_tried_again(
    tmp_path: Path, launched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, begun = tmp_path / "run", list[object]()
    assert run("train", "--out", out, *TINY, "--lr", "1e30") == 2
    assert "[training-diverged]" in capsys.readouterr().err.splitlines()[-1]
    assert RunFolder(out).failure.exists()
    assert {check.result for check in check_folder(out)} == {"good"}

    launched.setattr(Trainer, "resume", lambda trainer: begun.append(trainer))
    for words in (("train", "--out", out, *TINY, "--lr", "1e30"), ("resume", out)):
        assert run(*words) == 2
        again = capsys.readouterr().err.splitlines()[-1]
        assert again.endswith("[launch-failed]")
        assert f"{RunFolder(out).failure} keeps (training-diverged)" in again
    assert begun == []


def test_a_new_launch_tries_again(
    tmp_path: Path, launched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("train", "--out", out, *TINY, "--lr", "1e30") == 2
    launched.undo()
    capsys.readouterr()
    assert run("resume", out) == 2
    assert "continuing at epoch" in capsys.readouterr().err
    assert not RunFolder(out).failure.exists()


def test_what_fails_before_the_first_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    assert run("train", "--out", tmp_path / "run", *TINY, "--lanes", "3") == 2
    assert not (tmp_path / "run").exists()
