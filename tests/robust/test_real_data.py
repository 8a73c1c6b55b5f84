"""Training on the real SVHN and CIFAR-10, where `SIHG_DATA` has them: slow, and skipped elsewhere."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sihg.robust import data
from sihg.robust.ball import Ball
from sihg.robust.data import DataWarning
from sihg.robust.data.samples import held_out
from sihg.robust.evaluate import evaluate
from sihg.robust.fit import new_folder, prepare
from sihg.robust.settings import Settings, preset
from sihg.robust.trainer import Trained

pytestmark = [pytest.mark.slow]
FOLDER = Path(os.environ.get("SIHG_DATA", "nowhere"))


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (FOLDER / name).is_dir(), reason=f"SIHG_DATA names no folder with {name}")


class KilledError(Exception):
    """Stands for a kill: the process goes at once."""


def trained_with_an_interruption(settings: Settings, folder: Path, at: int) -> Trained:
    """Train, break off without warning after step `at`, and resume from what the folder has."""
    run = new_folder(folder, settings)

    def stop(event: str, about: dict[str, Any]) -> None:
        if event == "step" and about["step"] == at:
            raise KilledError

    with pytest.raises(KilledError):
        prepare(settings, data_dir=FOLDER, folder=run, tell=stop).run()
    again = prepare(settings, data_dir=FOLDER, folder=run, tell=lambda *_: None)
    assert again.resume() == []
    assert again.progress.epoch > 0
    return again.run()


def accuracy(result: Trained, settings: Settings, samples: int) -> float:
    """Under PGD-20, on test images."""
    test = held_out(data.load(settings.data, FOLDER)[1], samples)[1]
    ball = Ball(settings.eps, settings.norm, settings.bounds)
    return evaluate(result.model, test, ["pgd-20"], ball)[0].accuracy


@needs("svhn")
def test_svhn_learns_in_a_few_hundred_steps(tmp_path: Path) -> None:
    short = {"samples": 10_000, "epochs": 3, "method.steps": 5, "method.ramp": 2, "schedule.peak": 1, "lr": 0.1}
    settings = preset("svhn").with_values({**short, "optimizer.lr": short.pop("lr"), "checkpoint_minutes": 1})
    result = trained_with_an_interruption(settings, tmp_path / "run", at=150)
    assert result.finished
    assert result.history[-1]["loss"] < 2.2 < 2.3  # a constant prediction has 2.24 here
    assert accuracy(result, settings, 500) > 0.25  # the most frequent digit has 0.196


@needs("cifar10")
@pytest.mark.filterwarnings("ignore::sihg.robust.data.DataWarning")
def test_cifar10_learns_at_an_eighth_of_the_width(tmp_path: Path) -> None:
    short = {"width": 1 / 8, "samples": 5_000, "epochs": 4, "method.steps": 5, "method.ramp": 1}
    settings = preset("cifar10").with_values(
        {**short, "schedule": "triangular", "schedule.peak": 1, "optimizer.lr": 0.1, "checkpoint_minutes": 1}
    )
    result = trained_with_an_interruption(settings, tmp_path / "run", at=70)
    assert result.finished
    assert result.history[-1]["loss"] < 2.2
    assert accuracy(result, settings, 500) > 0.15


@needs("cifar10")
@pytest.mark.filterwarnings("ignore::sihg.robust.data.DataWarning")
def test_cifar10_takes_two_steps_at_full_width(tmp_path: Path) -> None:
    settings = preset("cifar10").with_values({"samples": 200, "validation": 0, "epochs": 1, "schedule": "constant"})
    trainer = prepare(settings, data_dir=FOLDER, folder=new_folder(tmp_path / "run", settings), tell=lambda *_: None)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    result = trainer.run()
    assert result.history[-1]["step"] == 2
    assert torch.isfinite(torch.tensor(result.history[-1]["loss"]))
    assert any(not torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())


@needs("cifar10")
def test_a_partial_cifar10_is_used_with_a_warning() -> None:
    there = sorted(path.name for path in (FOLDER / "cifar10").rglob("data_batch_*"))
    if len(there) == 5:
        pytest.skip("all five training batches are there")
    with pytest.warns(DataWarning, match="data_batch"):
        train, test = data.load("cifar10", FOLDER)
    assert len(train) == 10_000 * len(there)
    assert len(test) == 10_000
