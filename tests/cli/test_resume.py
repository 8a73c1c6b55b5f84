"""`sihg resume` as people use it."""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from sihg.cli.main import main
from sihg.errors import InputError
from sihg.robust.training.config import Settings
from sihg.robust.training.fit import new_folder
from sihg.store.checkpoint import read_checkpoint
from sihg.store.run_folder import RunFolder
from sihg.store.schema import write_record
from tests.store.edits import edit_config

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
    assert json.loads((done / "environment.json").read_text())["threads"] == 1
    assert run("resume", done, "--threads", "2") == 0
    assert "computed with 1 threads and continues with 2" in capsys.readouterr().err


def test_a_run_continues_with_the_threads_of_its_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if it began with others."""
    out, here = tmp_path / "run", torch.get_num_threads()
    assert run("train", "--out", out, *TINY, "--threads", here + 1) == 0
    last = max(out.glob("checkpoints/last-*"))
    assert read_checkpoint(last).state["threads"] == here + 1
    environment = RunFolder(out).read_environment()
    assert environment.threads == here + 1
    write_record(out / "environment.json", msgspec.structs.replace(environment, threads=here + 2))
    expected = weights(out)
    shutil.rmtree(last)
    capsys.readouterr()
    assert run("resume", out) == 0
    assert "threads" not in capsys.readouterr().err
    assert read_checkpoint(last).state["threads"] == here + 1
    assert weights(out) == expected
    assert torch.get_num_threads() == here


def test_a_run_without_a_checkpoint_continues_with_the_threads_of_its_beginning(done: Path) -> None:
    for name in ("checkpoints", "metrics.csv", "log.jsonl", "memory.csv"):
        path = done / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    environment = RunFolder(done).read_environment()
    write_record(done / "environment.json", msgspec.structs.replace(environment, threads=2))
    assert run("resume", done) == 0
    assert read_checkpoint(max(done.glob("checkpoints/last-*"))).state["threads"] == 2


def test_code_that_a_copy_names_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets.py").write_text(
        "from pathlib import Path\nfrom torch import nn\n\n\ndef make(shape, classes):\n"
        "    Path('ran').touch()\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("--method", "natural", "--model", "nets.py:make", "--epochs", "1", "--samples", "60")
    assert run("train", "--out", "run", *words, "--validation", "0") == 0
    assert run("resume", "run") == 0
    shutil.copytree("run", "copy")
    Path("ran").unlink()
    capsys.readouterr()
    for command in ("resume", "evaluate"):
        assert run(command, "copy") == 2
        assert "nets.py:make" in capsys.readouterr().err
    assert not Path("ran").exists()
    assert run("resume", "copy", "--trust") == 0
    assert Path("ran").exists()


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
    assert "config.toml was changed after sihg wrote it" in capsys.readouterr().err
    edit_config(done, {"optimizer.lr": 0.5})
    assert run("resume", done) == 2
    assert "is of a run with optimizer.lr = 0.05 (here 0.5): give the same settings" in capsys.readouterr().err
    edit_config(done, {"epsilon": 1})
    assert run("resume", done) == 2
    assert "config.toml: unknown setting 'epsilon'" in capsys.readouterr().err
    (done / "config.toml").write_text("epochs = ")
    assert run("resume", done) == 2
    assert "not valid TOML" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_settings_cut_short_are_not_filled_up(done: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = (done / "config.toml").read_text()
    section = "# name and options of the learning rate's schedule"
    for kept, message in (
        ("", "has lost the sum"),
        (config[: config.index(section)], "has lost the sum"),
        (config[:-1], "was changed after sihg wrote it"),
    ):
        (done / "config.toml").write_text(kept)
        assert run(command, done) == 2
        assert message in capsys.readouterr().err
    # As the first versions wrote it, without a format and a sum.
    config = config[: config.index("\n# sha256-of-this-file")].replace("format = 2\n", "")
    for kept, message in ((config[: config.index(section)], "has no [schedule]"), (config[:-1], "within a line")):
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
    new_folder(tmp_path / "mnist", Settings(data="mnist"), threads=1, data_dir=tmp_path / "data")
    asked: list[object] = []

    def prepare(_settings: Settings, *, data_dir: Path | None, **_: object) -> None:
        asked.append(data_dir)
        raise InputError("no-problem")

    monkeypatch.setattr("sihg.robust.training.preflight.prepare", prepare)
    for words in ((tmp_path / "mnist",), (tmp_path / "mnist", "--data-dir", "other"), (done,)):
        assert run("resume", *words) == 2
    assert asked == [tmp_path / "data", Path("other"), None]
