"""A run that was interrupted, anyhow and anywhere, ends bit by bit as if it had not been."""

import random
import shutil
import signal
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sihg.errors import InputError
from sihg.robust import models
from sihg.robust.training import state as state_module
from sihg.robust.training.config import Settings, read_settings
from sihg.robust.training.events import EpochDone, Event, OnEvent, StepDone
from sihg.robust.training.preflight import preflight
from sihg.robust.training.trainer import Trainer
from sihg.store.checkpoint import write_checkpoint
from sihg.store.run_folder import RunFolder
from tests.refused import refused
from tests.robust.small import STEPS, assert_same, digits, fingerprint, settings
from tests.robust.training.trainers import trainer

BN = {"model": "preact-resnet8", "width": 1 / 8}
CASES: dict[str, dict[str, Any]] = {
    "msi-hg": {"steps": 2, "validation": 20, "evaluate_with": "pgd-3"},
    "msi-hg in files": {"steps": 2, "memory_files": True, "ramp": 1.5},
    "msi-hg augmented": {"steps": 2, "crop": 1, "flip": True, "ema": 0.9, "clip": 0.5, "memory": "fp16"},
    "msi-hg independent, reset": {"steps": 2, "crop": 1, "augment_delta": "independent", "reset": 2, "memory": "fp32"},
    "msi-hg bn": {"steps": 2, **BN, "ema": 0.9, "validation": 20, "evaluate_every": 2, "evaluate_with": "pgd-3"},
    "msi-hg adamw": {"steps": 2, "optimizer": {"name": "adamw", "lr": 0.01, "betas": [0.8, 0.9]}, "theta": 0.5},
    "msi-hg in lanes": {"steps": 2, "lanes": 4, "memory_files": True, "schedule": "cosine"},
    "atta": {"method": "atta", "reset": 2, "noise": 0.1, "crop": 1, "label_smoothing": 0.1},
    "fgsm-pgi in files, in lanes": {"method": "fgsm-pgi", "reset": 2, "lanes": 2, "memory_files": True, "ramp": 1.5},
    "mart bn awp": {"method": "mart", "steps": 2, **BN, "awp_gamma": 0.01, "awp_warmup": 1.2, "ema": 0.9},
    "free": {"method": "free", "replays": 2, "nesterov": True, "schedule": {"name": "triangular", "peak": 1}},
    "dat": {"method": "dat", "steps": 3, "lanes": 2, "weighted": True, "validation": 20},
    "free in lanes": {"method": "free", "replays": 2, "lanes": 4},
    "msi-hg bn fused": {"steps": 2, **BN, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "fused": True}},
    "pgd bn fused adamw": {
        "method": "pgd",
        "steps": 2,
        **BN,
        "optimizer": {"name": "adamw", "lr": 0.01, "fused": True},
    },
    "pgd bn rmsprop": {"method": "pgd", "steps": 2, **BN, "optimizer": "rmsprop", "flip": True},
}


class KilledError(Exception):
    """Stands for a kill: nobody catches it, nothing is tidied up."""


@pytest.fixture(autouse=True)
def _a_quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, which is slow; no test here loses power."""
    monkeypatch.setattr("os.fsync", lambda _handle: None)


def dropout_model() -> nn.Module:
    stem = nn.Conv2d(1, 4, 3, padding=1)
    body = nn.Sequential(nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(256, 10))
    return nn.Sequential(OrderedDict(stem=stem, body=body))


def kill_at(moment: tuple[str, int]) -> OnEvent:
    """Return a callback that raises at the event (step or epoch) of that number."""

    def on_event(event: Event) -> None:
        step = ("step", event.step) if isinstance(event, StepDone) else None
        epoch = ("epoch", event.row.epoch) if isinstance(event, EpochDone) else None
        if moment in (step, epoch):
            raise KilledError

    return on_event


def killed(chosen: Settings, path: Path, moments: list[tuple[str, int]]) -> Trainer:
    """Train with a kill at each moment and a new trainer after each."""
    for number, moment in enumerate(moments):
        run = trainer(chosen, path, again=number > 0)
        if number:
            assert run.resume() == []
        with pytest.raises(KilledError):
            run.run(kill_at(moment))
    last = trainer(chosen, path, again=True)
    assert last.resume() == []
    assert last.run().finished
    return last


@pytest.mark.parametrize(("number", "name"), [*enumerate(CASES), *enumerate(list(CASES)[:2], 1)])
def test_kills_change_nothing(tmp_path: Path, number: int, name: str) -> None:
    minutes = 60 * (number % 2)  # a checkpoint a step, or only one an epoch
    chosen = settings(**CASES[name], checkpoint_minutes=minutes)
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()
    # the first step, within an epoch, its last step, its row without its checkpoint, twice at one place, the last step
    n = whole.prepared.steps
    steps = [1, 2, n, 2 * n - 1, 2 * n - 1, 3 * n]
    moments = [("step", step) for step in steps]
    moments.insert(3, ("epoch", 1))
    assert_same(fingerprint(killed(chosen, tmp_path / "killed", moments)), fingerprint(whole))


@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random_moments_change_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    chosen = settings(steps=2, memory_files=bool(seed % 2), ema=0.8, validation=10, evaluate_with="pgd-2")
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()
    chosen = chosen.with_values({"checkpoint_minutes": draw.choice([0, 0.0005])})
    steps = sorted(draw.sample(range(1, 3 * 3 + 1), 5))  # 90 samples to train on: three steps an epoch
    moments = [("step", step) for step in steps]
    assert_same(fingerprint(killed(chosen, tmp_path / "killed", moments)), fingerprint(whole))


def test_dropout_is_drawn_again(tmp_path: Path) -> None:
    chosen = settings(steps=2, checkpoint_minutes=0)
    torch.manual_seed(3)  # what the global generator holds makes no difference
    model = dropout_model()
    start = {name: t.clone() for name, t in model.state_dict().items()}
    whole = trainer(chosen, tmp_path / "whole", model=model)
    whole.run()
    torch.manual_seed(4)
    first = dropout_model()
    first.load_state_dict(start)
    with pytest.raises(KilledError):
        trainer(chosen, tmp_path / "killed", model=first).run(kill_at(("step", 6)))
    rest = trainer(chosen, tmp_path / "killed", again=True, model=dropout_model())
    rest.resume()
    rest.run()
    assert_same(fingerprint(rest), fingerprint(whole))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_a_checkpoint_and_an_end(tmp_path: Path, number: signal.Signals) -> None:
    chosen = settings(steps=2, checkpoint_minutes=60)
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()

    def ask_at(step: int) -> OnEvent:
        return lambda event: signal.raise_signal(number) if isinstance(event, StepDone) and event.step == step else None

    path = tmp_path / "stopped"
    stopped = trainer(chosen, path).run(ask_at(2))
    assert (stopped.finished, stopped.stopped) == (False, "interrupted in epoch 1")
    assert [p.name for p in sorted((path / "checkpoints").iterdir())] == ["last-00000000", "last-00000002"]
    again = trainer(chosen, path, again=True)
    again.resume()
    ended = again.run(ask_at(STEPS))  # at the end of an epoch, which is closed first
    assert (ended.finished, len(ended.history), again.progress.number) == (False, 1, 0)
    last = trainer(chosen, path, again=True)
    last.resume()
    assert last.run(ask_at(3 * STEPS)).finished  # too late to stop anything
    assert_same(fingerprint(last), fingerprint(whole))


def test_a_trainer_goes_on_after_its_own_interruption(tmp_path: Path) -> None:
    chosen = settings(steps=2, ema=0.5)
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()
    run = trainer(chosen, tmp_path / "run")
    interrupt = lambda event: signal.raise_signal(2) if isinstance(event, StepDone) and event.step == 3 else 0  # noqa: E731
    assert not run.run(interrupt).finished
    assert run.run().finished
    assert_same(fingerprint(run), fingerprint(whole))


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings(steps=2, memory_files=True)
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()

    def kill(*_args: Any, **_options: Any) -> None:
        raise KilledError

    path = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(state_module, "write_checkpoint", kill)
        with pytest.raises(KilledError):
            trainer(chosen, path).run()
    (path / "checkpoints").mkdir()  # and one killed while it wrote the first
    (path / "checkpoints" / ".last-00000000.tmp-0123abcd").mkdir()
    again = trainer(chosen, path, again=True, model=trainer(settings()).model)
    assert again.resume() == []
    again.run()
    assert_same(fingerprint(again), fingerprint(whole))


def test_a_kill_between_the_best_and_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings(steps=2, validation=20, evaluate_with="pgd-2")
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()

    def kill_after_best(folder: Path, name: str, *rest: Any, **options: Any) -> Path:
        made = write_checkpoint(folder, name, *rest, **options)
        if name.startswith("best-"):
            raise KilledError
        return made

    path = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(state_module, "write_checkpoint", kill_after_best)
        with pytest.raises(KilledError):
            trainer(chosen, path).run()
    again = trainer(chosen, path, again=True)
    again.resume()
    again.run()
    assert_same(fingerprint(again), fingerprint(whole))


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    chosen = settings(steps=2, epochs=1)
    whole = trainer(chosen, tmp_path)
    whole.run()
    before = fingerprint(whole)
    again = trainer(chosen, tmp_path, again=True)
    again.resume()
    ended = again.run()
    assert (ended.finished, list(ended.history), ended.stopped) == (True, [], "1 epochs done")
    assert_same(fingerprint(again), before)


# ---- damage


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").glob("last-*"))


@pytest.mark.parametrize(
    "file", ["weights.safetensors", "memory.safetensors", "optimizer.safetensors", "manifest.json"]
)
def test_a_damaged_checkpoint_is_skipped_by_name(tmp_path: Path, file: str) -> None:
    chosen = settings(steps=2)
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()
    path = tmp_path / "killed"
    with pytest.raises(KilledError):
        trainer(chosen, path).run(kill_at(("step", 2 * STEPS + 1)))
    assert [p.name for p in checkpoints(path)] == ["last-00000004", "last-00000008"]
    flip_a_bit(checkpoints(path)[1] / file)
    again = trainer(chosen, path, again=True)
    (skipped,) = again.resume()
    assert skipped.startswith("last-00000008: ")
    assert file in skipped
    assert again.progress.epoch == 1
    again.run()
    assert_same(fingerprint(again), fingerprint(whole))


def test_without_a_whole_checkpoint_all_are_named(tmp_path: Path) -> None:
    chosen = settings(steps=2, epochs=2)
    trainer(chosen, tmp_path).run()
    for path in checkpoints(tmp_path):
        flip_a_bit(path / "weights.safetensors")
    with pytest.raises(InputError, match=r"last-00000008 \(weights.*last-00000004 \(weights.*start the run again"):
        trainer(chosen, tmp_path, again=True).resume()


def test_checkpoints_that_were_deleted_are_missed(tmp_path: Path) -> None:
    chosen = settings(steps=2, epochs=1)
    trainer(chosen, tmp_path).run()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(InputError, match="has no checkpoint last-NUMBER"):
        trainer(chosen, tmp_path, again=True).resume()


def test_memory_files_fall_back_as_far_as_they_reach(tmp_path: Path) -> None:
    chosen = settings(steps=2, memory_files=True)
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()
    path = tmp_path / "killed"
    with pytest.raises(KilledError):
        trainer(chosen, path).run(kill_at(("step", 2 * STEPS)))  # the second epoch is trained, its end not written
    run = trainer(chosen, path, again=True)
    run.resume()
    with pytest.raises(KilledError):
        run.run(kill_at(("step", 2 * STEPS + 1)))
    run.method.flush()  # what the next epoch has written over is in the files
    newest = checkpoints(path)[-1]
    twin = path / "checkpoints" / newest.name.replace("last", "twin")
    assert [p.name for p in (path / "checkpoints").glob("twin-*")] == [twin.name]  # only the newest is of use
    shutil.copytree(path, tmp_path / "both damaged")
    flip_a_bit(newest / "weights.safetensors")
    second = trainer(chosen, path, again=True)
    (skipped,) = second.resume()
    assert skipped.startswith(f"{newest.name}: weights.safetensors")
    second.run()
    assert_same(fingerprint(second), fingerprint(whole))

    path = tmp_path / "both damaged"
    for name in (newest.name, twin.name):
        flip_a_bit(path / "checkpoints" / name / "weights.safetensors")
    with refused("memory-overwritten", epoch=1):
        trainer(chosen, path, again=True).resume()

    path = tmp_path / "killed earlier"

    with pytest.raises(KilledError):
        trainer(chosen, path).run(kill_at(("epoch", 2)))  # before its checkpoint
    assert [p.name for p in checkpoints(path)] == ["last-00000000", "last-00000004"]
    again = trainer(chosen, path, again=True)
    assert again.resume() == []
    again.run()
    assert_same(fingerprint(again), fingerprint(whole))


# ---- what does not fit


def test_settings_that_a_checkpoint_does_not_know_yet_have_their_defaults() -> None:
    now = settings().deciding()
    older = {key: value for key, value in now.items() if key not in ("clip", "validate_on", "method.fresh")}
    assert len(older) == len(now) - 3
    assert state_module._with_defaults(older, settings()) == now
    assert state_module._with_defaults(older, settings(clip=0.3))["clip"] == "none"


def test_resume_needs_a_folder() -> None:
    with refused("resume-folder"):
        trainer(settings()).resume()


def test_other_data_and_other_models_are_refused(tmp_path: Path) -> None:
    chosen = settings(steps=2, epochs=1)
    trainer(chosen, tmp_path).run()
    wide = models.build("small-cnn", (1, 8, 8), 10, width=0.5)
    with refused("weights-other-model"):
        trainer(chosen, tmp_path, again=True, model=wide).resume()
    folder, samples = RunFolder.open(tmp_path), digits()
    model = trainer(chosen).model
    x = samples.x.clone()
    x[7, 0, 3, 4] += 1  # one pixel, by one
    for other, names in (
        (replace(samples, x=x), ["sha256"]),
        (samples.take(slice(1, None)), ["samples", "sha256"]),
        (replace(samples, y=samples.y.flip(0)), ["sha256"]),
    ):
        with refused("resume-other-data") as caught:
            Trainer(preflight(model, other, chosen), folder).resume()
        assert list(caught.value.values["differences"]) == names  # type: ignore[call-overload]
    with refused("resume-other-data"):
        Trainer(preflight(model, samples, chosen, digits(10)), folder).resume()


@pytest.mark.parametrize(
    ("edited", "differences"),
    [
        ({"lr": 0.1}, {"optimizer.lr": (0.05, 0.1)}),
        ({"epochs": 5, "seed": 1}, {"epochs": (1, 5), "seed": (0, 1)}),
        ({"nesterov": True}, {"optimizer.nesterov": (False, True)}),
        ({"tau": 0.1}, {"method.tau": ("none", 0.1)}),
        ({"theta": 0}, {"optimizer.theta": (1.0, 0.0)}),
        ({"schedule": "cosine"}, {"schedule.name": ("constant", "cosine"), "schedule.warmup": ("none", 0.0)}),
        ({"memory_files": True}, {"memory_files": (False, True)}),
        ({"clip": 1}, {"clip": ("none", 1.0)}),
        ({"optimizer.fused": True}, {"optimizer.fused": ("none", True)}),
    ],
)
def test_edited_settings_are_refused_by_name(
    tmp_path: Path, edited: dict[str, Any], differences: dict[str, tuple[object, object]]
) -> None:
    chosen = settings(method="msi-hg", steps=1, epochs=1)
    trainer(chosen, tmp_path).run()
    with refused("resume-other-settings", differences=differences) as caught:
        trainer(chosen.with_values(edited), tmp_path, again=True).resume()
    assert all(f"{name} = {theirs} (here {ours})" in str(caught.value) for name, (theirs, ours) in differences.items())


def test_settings_that_change_no_result_may_be_edited(tmp_path: Path) -> None:
    chosen = settings(steps=1, epochs=1)
    trainer(chosen, tmp_path).run()
    again = trainer(chosen.with_values({"checkpoint_minutes": 0, "data": "npz:moved.npz"}), tmp_path, again=True)
    assert again.resume() == []
    from_file = trainer(read_settings(tmp_path / "config.toml"), tmp_path, again=True)
    assert from_file.resume() == []
    assert from_file.progress.epoch == 1
