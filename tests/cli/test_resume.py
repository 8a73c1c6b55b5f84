"""`sihg resume` as people use it."""

import json
import shutil
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.runs.checkpoint import read_checkpoint

TINY = ("--epochs", "2", "--samples", "100", "--validation", "20", "--steps", "2", "--width", "1/4", "--threads", "1")


def run(*words: object) -> int:
    return main([str(word) for word in words])


def weights(folder: Path) -> dict[str, list[float]]:
    last = max(folder.glob("checkpoints/last-*"))
    return {name: value.flatten().tolist() for name, value in read_checkpoint(last).tensors["weights"].items()}


@pytest.fixture
def done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run("train", "--out", tmp_path / "run", *TINY) == 0
    capsys.readouterr()
    return tmp_path / "run"


def test_finished(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("resume", done, "--json") == 0
    captured = capsys.readouterr()
    assert "already finished" in captured.err
    assert json.loads(captured.out)["last"]["epoch"] == 2


def test_damage_is_named_and_skipped(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = weights(done)
    newest = max(done.glob("checkpoints/last-*"))
    file = newest / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert run("resume", done) == 0
    assert f"skipped damaged checkpoint {newest.name}: weights.safetensors" in capsys.readouterr().err
    assert weights(done) == expected


def test_killed_before_the_first_checkpoint(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = weights(done)
    for name in ("checkpoints", "metrics.csv", "log.jsonl"):
        path = done / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run("resume", done) == 0
    assert "going on at epoch 1, batch 1" in capsys.readouterr().err
    assert weights(done) == expected


def test_threads(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads((done / "environment.json").read_text())
    assert about["threads"] == 1
    (done / "environment.json").write_text(json.dumps({**about, "threads": 3000}))
    assert run("resume", done, "--threads", "1") == 0
    assert "began with 3000 threads and goes on with 1" in capsys.readouterr().err


def test_mistakes(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ((done, "--epochs", "5"), "the schedule depends on it, --epochs is given"),
        ((done, "--tau=1"), "a run keeps its settings, --tau is given"),
        ((tmp_path / "none",), "does not exist"),
        ((tmp_path,), "is not a run folder"),
    ):
        assert run("resume", *words) == 2
        assert message in capsys.readouterr().err
    (done / "config.toml").write_text("epochs = 2\nepsilon = 1\n")
    assert run("resume", done) == 2
    assert "config.toml: unknown setting 'epsilon'" in capsys.readouterr().err
    (done / "config.toml").write_text("epochs = ")
    assert run("resume", done) == 2
    assert "not valid TOML" in capsys.readouterr().err
