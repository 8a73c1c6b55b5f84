"""`sihg resume` as people use it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sihg.cli.main import main
from sihg.errors import InputError
from sihg.robust.training.config import Settings
from sihg.robust.training.fit import new_folder
from sihg.store.checkpoint import read_checkpoint

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
    assert "continuing at epoch 1, batch 1" in capsys.readouterr().err
    assert weights(done) == expected


def test_threads(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads((done / "environment.json").read_text())
    assert about["threads"] == 1
    (done / "environment.json").write_text(json.dumps({**about, "threads": 3000}))
    assert run("resume", done, "--threads", "1") == 0
    assert "began with 3000 threads and continues with 1" in capsys.readouterr().err


def test_mistakes(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (
            (done, "--epochs", "5"),
            "a run keeps its settings, got --epochs: leave it out",
        ),
        ((done, "--tau=1"), "a run keeps its settings, got --tau"),
        ((tmp_path / "none",), "does not exist"),
        ((tmp_path,), "is not a run folder"),
    ):
        assert run("resume", *words) == 2
        assert message in capsys.readouterr().err
    config = (done / "config.toml").read_text()
    (done / "config.toml").write_text(config.replace("lr = 0.05", "lr = 0.5"))
    assert run("resume", done) == 2
    assert "is of a run with optimizer.lr = 0.05 (here 0.5): give the same settings" in capsys.readouterr().err
    (done / "config.toml").write_text("epochs = 2\nepsilon = 1\n")
    assert run("resume", done) == 2
    assert "config.toml: unknown setting 'epsilon'" in capsys.readouterr().err
    (done / "config.toml").write_text("epochs = ")
    assert run("resume", done) == 2
    assert "not valid TOML" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_settings_cut_short_are_not_filled_up(done: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = (done / "config.toml").read_text()
    end = config.index("# name and options of the learning rate's schedule")
    for kept, message in (("", "has no [method]"), (config[:end], "has no [schedule]"), (config[:-1], "within a line")):
        (done / "config.toml").write_text(kept)
        assert run(command, done) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "cut short: put the whole file back" in error


def own_data(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    np.savez(path, x=draw.random((60, 1, 8, 8), np.float32), y=np.arange(60) % 3)


def test_own_data_is_found_from_everywhere_and_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_data(tmp_path / "mine.npz", 0)
    monkeypatch.chdir(tmp_path)
    words = ("--data", "npz:mine.npz", "--eps", "0.1", "--epochs", "1", "--steps", "1", "--width", "1/4")
    assert run("train", "--out", "run", *words) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("resume", tmp_path / "run") == 0
    assert run("evaluate", tmp_path / "run", "--attacks", "natural") == 0
    capsys.readouterr()
    own_data(tmp_path / "mine.npz", 1)
    assert run("resume", tmp_path / "run") == 2
    assert "is of a run on other data, with sha256 = " in capsys.readouterr().err


def test_the_data_folder_is_remembered(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of published data; the digits come with a package and are nowhere."""
    assert "data_folder" not in json.loads((done / "environment.json").read_text())
    (tmp_path / "data").mkdir()
    new_folder(tmp_path / "mnist", Settings(data="mnist"), data_dir=tmp_path / "data")
    asked: list[object] = []

    def prepare(_settings: Settings, *, data_dir: Path | None, **_: object) -> None:
        asked.append(data_dir)
        raise InputError("threads-zero")

    monkeypatch.setattr("sihg.robust.training.preflight.prepare", prepare)
    for words in ((tmp_path / "mnist",), (tmp_path / "mnist", "--data-dir", "other"), (done,)):
        assert run("resume", *words) == 2
    assert asked == [tmp_path / "data", Path("other"), None]
