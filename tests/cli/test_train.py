"""`sihg train` as people use it."""

import json
import signal
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from sihg.cli import train
from sihg.cli.main import build_parser, main
from sihg.cli.setting_flags import read_settings_arguments
from sihg.cli.train import TrainingOutput
from sihg.robust.methods import METHODS, method_fields
from sihg.robust.training.config import OptimizerOptions, Settings, read_preset, read_presets
from sihg.robust.training.events import Event, StepDone
from sihg.store.checkpoint import read_checkpoint
from sihg.store.run_folder import locked
from sihg.store.tables import read_table

TINY = ("--epochs", "1", "--samples", "100", "--validation", "20", "--steps", "2", "--width", "1/4")


def run(*words: object) -> int:
    return main([str(word) for word in words])


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line of an error."""
    assert run(*words) == 2
    told = ("settings: ", "samples: ")
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(told)]
    assert len(lines) == 1
    return lines[0]


def test_train_leaves_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run("train", "--out", out, *TINY, "--lr=1/50", "--flip", "--set", "optimizer.nesterov=true", "--json") == 0
    captured = capsys.readouterr()
    ended = json.loads(captured.out)
    assert (ended["method"], ended["finished"], ended["stopped"]) == ("msi-hg", True, "1 epochs done")
    assert ended["best"]["robust"] == ended["last"]["robust"]
    assert "settings: preset digits" in captured.err
    assert "epoch 1: loss" in captured.err
    assert f"next: sihg evaluate {out}" in captured.err
    config = tomllib.loads((out / "config.toml").read_text())
    assert (config["eps"], config["flip"], config["width"], config["samples"]) == (0.25, True, 0.25, 100)
    given = {"name": "msi-hg", "tau": 0.125, "steps": 2, "step_size": "none", "ramp": 0.0, "augment_delta": "same"}
    assert config["method"].items() >= given.items()
    given = {"name": "sgd", "lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0, "theta": 1.0}
    assert config["optimizer"].items() >= given.items()
    assert (config["memory"], config["clip"]) == ("int8", "none")
    assert json.loads((out / "environment.json").read_text())["threads"] == torch.get_num_threads()
    assert len(read_table(out / "metrics.csv")) == 1


def test_table_and_the_presets_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--method", "pgd", "--out", tmp_path / "run", *TINY) == 0
    out = capsys.readouterr().out
    assert "│ pgd" in out
    assert "(epoch 1)" in out
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    usual = {"label_smoothing": 0.0, "awp_gamma": 0.0, "awp_warmup": 0.0, "statistics": "batch", "step_size": "none"}
    assert config["method"] == {"name": "pgd", "steps": 2, "ramp": 3.0, **usual}
    assert (config["optimizer"]["nesterov"], config["optimizer"]["theta"]) == (True, 0.0)


@pytest.mark.parametrize("name", sorted(read_presets()))
def test_presets(name: str) -> None:
    assert read_presets()[name]["about"]
    for method in METHODS:
        settings = read_preset(name, method)
        assert settings.method.name == method
        if method == "ibp" and "resnet" in settings.model:
            continue  # refused
        if method != "yopo":  # its authors' optimiser
            literal = name.startswith("paper-")  # the paper trains every method with plain momentum
            nesterov = not literal and (method != "msi-hg" or name.startswith("mnist-robust"))
            assert settings.optimizer.options.get("nesterov", False) is nesterov
        own_epochs = method == "free" or (method, name) == ("yopo", "paper-cifar10")  # its authors'
        assert own_epochs or settings.epochs == read_preset(name).epochs


def test_the_papers_settings() -> None:
    cifar = read_preset("cifar10")
    assert (cifar.eps, cifar.method_settings.tau, cifar.method_settings.steps) == (8 / 255, 14 / 255, 10)
    assert cifar.schedule.options["points"] == [[0, 0], [5, 0.2], [15, 0], [20, 0.02], [30, 0]]
    assert read_preset("cifar10", "free").epochs == 4
    assert (read_preset("mnist").eps, read_preset("mnist", "trades").method_settings.beta) == (0.4, 1.0)


def typed(*words: str) -> dict[str, str]:
    """Return the settings that the command line reads from these words."""
    return read_settings_arguments(build_parser("train").parse_args(["train", *words]))


def test_settings_as_typed() -> None:
    assert typed("--lr", "-1", "--flip", "--crop=2") == {"lr": "-1", "flip": "true", "crop": "2"}
    assert typed("--bounds", "-1,2.5", "--tau", "-1/2") == {"bounds": "-1,2.5", "tau": "-1/2"}
    assert typed("--batch_size", "5", "--checkpoint_minutes=1") == {"batch_size": "5", "checkpoint_minutes": "1"}
    own = {"method": "a.py:M", "decay": "-1/2", "fast": "true", "beta": "2", "lr": "1"}
    assert typed("--method", "a.py:M", "--decay", "-1/2", "--fast", "--beta=2", "--lr", "1") == own
    assert typed("--batch-size", "5", "--set", "method.name=pgd", "--set", "optimizer.betas=[0.9,0.99]") == {
        "batch_size": "5",
        "method": "pgd",
        "optimizer.betas": "[0.9,0.99]",
    }
    assert typed("--optimizer.lr", "1", "--method.step-size", "2", "--schedule.peak", "3") == {
        "lr": "1",
        "step_size": "2",
        "schedule.peak": "3",
    }


@pytest.mark.parametrize(("words", "value"), [((), False), (("--flip",), True), (("--flip", "yes"), True)])
@pytest.mark.parametrize("name", ["flip", "memory-files"])
def test_booleans(words: tuple[str, ...], value: bool, name: str) -> None:
    words = tuple(word.replace("flip", name) for word in words)
    field = name.replace("-", "_")
    assert getattr(Settings().with_values(typed(*words)), field) is value
    assert getattr(Settings().with_values(typed(f"--{name}=false")), field) is False
    assert getattr(Settings().with_values(typed(f"--{name}", "false", "--crop", "1")), field) is False


def test_settings_begin_with_those_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"data": "npz:x.npz", "method": "pgd", "bounds": "none", "eps": "8/255"}
    settings = train.choose_settings(None, given)
    assert (settings.method.name, settings.bounds, settings.eps) == ("pgd", None, 8 / 255)
    assert capsys.readouterr().err == ""  # such data has no preset
    assert train.choose_settings("mnist", {"data": "fashion-mnist"}).data == "fashion-mnist"
    assert capsys.readouterr().err == "settings: preset mnist\n"


def test_every_setting_has_a_flag_and_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run("train", "--help")
    out = " ".join(capsys.readouterr().out.split())
    methods = {name: item for method in METHODS for name, item in method_fields(method).items()}
    for name, item in [*methods.items(), *((f.name, f) for f in (*fields(Settings), *fields(OptimizerOptions)))]:
        assert f"--{name.replace('_', '-')} " in out
        assert name in ("method", "optimizer", "schedule") or item.metadata["help"].split()[0] in out
    for word in ("--schedule.milestones", "mnist-fast", "yopo M full passes", "(default: pgd 10, dat 10, trades 10"):
        assert word in out


MISTAKES = {
    "unknown preset 'cifar11'": ["--preset", "cifar11"],
    "unknown method 'pgdd'": ["--method", "pgdd"],
    "unknown data source 'nist'": ["--data", "nist"],
    "unknown model 'vgg'": ["--model", "vgg"],
    "unknown argument '--epoch': did you mean --epochs? [unknown-argument]": ["--epoch", "3"],
    "unknown argument '--quality': `sihg train --help` lists all": ["--quality", "3"],
    "unknown argument '7'": ["--lr", "1", "7"],
    "unknown argument '--optimizer.betas': give it as --set optimizer.betas=VALUE": ["--optimizer.betas", "1"],
    "--lr needs a value (see `sihg train --help`) [usage]": ["--lr"],
    "method 'pgd' has no setting 'tau'": ["--method", "pgd", "--tau", "0.1"],
    "eps 8 is more than the whole range": ["--eps", "8"],
    "unknown optimizer 'sdg'": ["--optimizer", "sdg"],
    "unknown schedule 'cosin'": ["--schedule", "cosin"],
    "unknown attack 'pgd'": ["--evaluate-with", "pgd"],
    "epochs must be a number such as 5": ["--epochs", "two"],
    "not of the form KEY=VALUE": ["--set", "tau"],
    "`sihg data get mnist`": ["--data", "mnist", "--data-dir", "/nowhere"],
    "no file ": ["--data", "npz:/nowhere/x.npz", "--eps", "0.1"],
    "cannot be used here": ["--device", "quantum"],
    "threads must be an integer >= 1 and <= 1024, got 0": ["--threads", "0"],
    "theta must be a number such as 5, 0.1 or 8/255, got 'abc'": ["--theta", "abc"],
    "optimizer.betas must be 2 numbers": ["--optimizer", "adamw", "--set", "optimizer.betas=[0.9]"],
    "SparseAdam does not support dense gradients": ["--optimizer", "sparseadam"],
    "nesterov must be true or false, got 'maybe'": ["--nesterov", "maybe"],
    "weight_decay must be finite, got nan": ["--weight-decay", "nan"],
    "batch_size must be an integer >= 1, got 0": ["--batch-size", "0"],
    "cannot be used together: leave out one": ["--preset", "mnist", "--config", "x.toml"],
    "cannot read /nowhere/x.toml": ["--config", "/nowhere/x.toml"],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "train", "--out", tmp_path / "run", *MISTAKES[message])
    assert message in said
    assert list(tmp_path.iterdir()) == []


def test_own_data_with_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.random.default_rng(0).random((40, 8, 8), np.float32), np.arange(40) % 4
    nan, negative = x.copy(), y.copy()
    nan[3, 2, 2], negative[5] = np.nan, -1
    for name, arrays, message in (("nan", (nan, y), "row 3 is nan"), ("label", (x, negative), "row 5 is -1")):
        np.savez(tmp_path / f"{name}.npz", x=arrays[0], y=arrays[1])
        said = refused(
            capsys, "train", "--data", f"npz:{tmp_path / name}.npz", "--eps", "0.1", "--out", tmp_path / "run"
        )
        assert message in said
    (tmp_path / "cut.npz").write_bytes((tmp_path / "nan.npz").read_bytes()[:500])
    said = refused(capsys, "train", "--data", f"npz:{tmp_path / 'cut.npz'}", "--eps", "0.1", "--out", tmp_path / "run")
    assert "cannot be read as .npz" in said
    assert not (tmp_path / "run").exists()


def test_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --out" in refused(capsys, "train")
    out = tmp_path / "run"
    assert run("train", "--out", out, *TINY) == 0
    capsys.readouterr()
    assert "already has a run" in refused(capsys, "train", "--out", out, *TINY)
    with locked(out):
        assert "is in use by process" in refused(capsys, "train", "--out", out, "--overwrite", *TINY)
    assert run("train", "--out", out, "--overwrite", "--seed", "3", *TINY) == 0
    assert tomllib.loads((out / "config.toml").read_text())["seed"] == 3
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    capsys.readouterr()
    assert "not a run folder" in refused(capsys, "train", "--out", tmp_path / "mine", "--overwrite")
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_nothing(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "run"
    if there:
        out.mkdir()
    monkeypatch.setattr("sihg.store.checkpoint._write_durably", full)
    assert "No space left on device" in refused(capsys, "train", "--out", out, *TINY)
    assert ([p.name for p in out.iterdir()] == [".lock"]) if there else not out.exists()


def test_numbers_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    said = refused(capsys, "train", "--out", out, *TINY, "--lr", "1e30", "--batch-size", "20")
    kept = said.partition("the last good checkpoint is kept: ")[2].partition(" [")[0]
    assert (Path(kept) / "manifest.json").is_file()
    assert Path(kept).parent == out / "checkpoints"


@pytest.mark.parametrize(
    "words",
    [
        ("--lr", "3e38", "--weight-decay", "0.5"),
        ("--optimizer", "adam", "--set", "optimizer.eps=0.0", "--method", "natural"),
        ("--lr", "3e38", "--weight-decay", "100", "--batch-size", "80"),  # only at the last step
    ],
)
def test_weights_that_overflow_are_an_error_and_not_kept(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = words if "--method" in words else (*words, "--steps", "2")
    sizes = ("--epochs", "1", "--samples", "80", "--width", "1/4", "--validation", "0")
    assert run("train", "--out", tmp_path, *sizes, *own) != 0
    assert "the last good checkpoint is kept" in capsys.readouterr().err
    found = list((tmp_path / "checkpoints").iterdir())
    assert found
    for path in found:
        for group in read_checkpoint(path).tensors.values():
            assert all(bool(torch.isfinite(tensor).all()) for tensor in group.values())


@pytest.mark.parametrize("name", ["evaluation/notes.txt", "checkpoints/weights.pt"])
def test_overwrite_leaves_files_of_somebody_else(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--out", tmp_path, *TINY) == 0
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert name in refused(capsys, "train", "--out", tmp_path, "--overwrite", *TINY)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_resume(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say = TrainingOutput.__call__

    def interrupting(self: TrainingOutput, event: Event) -> None:
        say(self, event)
        if isinstance(event, StepDone) and event.step == 1:
            signal.raise_signal(number)

    monkeypatch.setattr(TrainingOutput, "__call__", interrupting)
    out = tmp_path / "run"
    assert run("train", "--out", out, *TINY) == 130
    assert f"to continue: sihg resume {out}" in capsys.readouterr().err
    monkeypatch.setattr(TrainingOutput, "__call__", say)
    assert run("resume", out) == 0
    assert "continuing at epoch 1, batch 2" in capsys.readouterr().err


def test_own_data_needs_eps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capsys, "train", "--data", "npz:mine.npz", "--out", tmp_path / "run")
    assert "'npz:mine.npz' has no preset, so eps has no default: give the radius of the ball" in said
    assert said.endswith("[own-data-eps]")


def last_weights(run: Path) -> dict[str, bytes]:
    last = max(run.glob("checkpoints/last-*"))
    return {p.name: p.read_bytes() for p in last.glob("*.safetensors")}


def test_a_saved_config_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    assert run("train", "--out", first, *TINY, "--crop", "1", "--threads", "1") == 0
    capsys.readouterr()
    assert run("train", "--config", first / "config.toml", "--out", second, "--threads", "1") == 0
    assert f"settings: {first / 'config.toml'}" in capsys.readouterr().err
    assert (second / "config.toml").read_bytes() == (first / "config.toml").read_bytes()
    assert last_weights(second) == last_weights(first)
    assert run("train", "--config", first / "config.toml", "--method", "pgd", "--seed", "3", "--out", other) == 0
    config = tomllib.loads((other / "config.toml").read_text())
    assert (config["method"]["name"], config["method"]["steps"], config["seed"]) == ("pgd", 2, 3)
    assert config["optimizer"]["theta"] == 0.0
    capsys.readouterr()
    (tmp_path / "mine.toml").write_text("epoch = 3\n")
    said = refused(capsys, "train", "--config", tmp_path / "mine.toml", "--out", tmp_path / "none")
    assert "mine.toml: unknown setting 'epoch': did you mean 'epochs'?" in said
    (tmp_path / "mine.toml").write_text('data = "npz:mine.npz"\n')
    said = refused(capsys, "train", "--config", tmp_path / "mine.toml", "--out", tmp_path / "none")
    assert "mine.toml has your own data and no eps" in said


def test_a_single_sample_for_batch_normalisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\ndef make(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))\n"
    )
    words = ("--model", f"{tmp_path / 'nets.py'}:make", "--samples", "100", "--validation", "19", "--batch-size", "20")
    said = refused(capsys, "train", "--out", tmp_path / "run", *words)
    assert "batch normalisation needs 2 or more" in said
    assert "(81 samples, batch_size 20, 1 lanes)" in said


LOGGERS = """
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")

class Counter:
    def __init__(self):
        self.count = 0
    def __call__(self, event):
        self.count += 1
        FILE.write_text(f"{self.count} {type(event).__name__}")

def fail(event):
    raise RuntimeError("full")

class Silent:
    pass
"""


def test_loggers_of_a_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(LOGGERS)
    assert run("train", "--out", tmp_path / "run", *TINY, "--log", f"{file}:Counter") == 0
    count, last = file.with_suffix(".txt").read_text().split()
    assert int(count) >= 4  # steps, an epoch, checkpoints
    assert last in ("CheckpointSaved", "EpochDone", "WarningRaised")
    capsys.readouterr()
    assert run("train", "--out", tmp_path / "failing", *TINY, "--log", f"{file}:fail") == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "full" in line)
    assert line.startswith("warning: ")
    assert line.endswith("the training goes on without this logger")
    for name, code in (("Silent", "logger-not-callable"), ("gone", "user-code-import")):
        said = refused(capsys, "train", "--out", tmp_path / "other", *TINY, "--overwrite", "--log", f"{file}:{name}")
        assert said.endswith(f"[{code}]")


METHOD = """
from dataclasses import dataclass
from sihg.robust.methods import PGDAT

@dataclass(kw_only=True)
class Mine(PGDAT):
    strength: float = 0.5
"""


def test_a_users_own_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    monkeypatch.chdir(tmp_path)
    assert run("train", "--method", "mine.py:Mine", "--strength", "3/4", "--out", "run", *TINY) == 0
    method = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["method"]
    assert (method["name"], method["strength"], method["steps"]) == (f"{tmp_path / 'mine.py'}:Mine", 0.75, 2)
    monkeypatch.chdir("/")
    assert run("resume", tmp_path / "run") == 0
    capsys.readouterr()
    words = ("train", "--method", f"{tmp_path / 'mine.py'}:Mine", "--out", tmp_path / "other")
    assert "unknown argument '1'" in refused(capsys, *words, "--strength", "1", "1")
    assert "did you mean 'strength'?" in refused(capsys, *words, "--strenght", "1")
    assert "did you mean 'strength'?" in refused(capsys, *words, "--set", "strenght=1")
