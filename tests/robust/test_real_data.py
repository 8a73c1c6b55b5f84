"""Training on the real SVHN and CIFAR-10, where `SIHG_DATA` has them: slow, and skipped elsewhere."""

import os
from pathlib import Path

import pytest
import torch

from sihg.robust import data
from sihg.robust.attacks.registry import plan_attacks
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data import DataWarning
from sihg.robust.data.samples import stratified_split
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings, read_preset
from sihg.robust.training.events import Event, StepDone, Trained
from sihg.robust.training.fit import new_folder
from sihg.robust.training.preflight import prepare
from sihg.robust.training.trainer import Trainer
from sihg.store.tables import read_table

pytestmark = [pytest.mark.slow]
FOLDER = Path(os.environ.get("SIHG_DATA", "nowhere"))


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (FOLDER / name).is_dir(), reason=f"SIHG_DATA names no folder with {name}")


class KilledError(Exception):
    """Stands for a kill: nothing is written after it."""


def trained_with_a_kill(settings: Settings, folder: Path, at: int) -> Trained:
    """Train, break off without warning after step `at`, and resume from what the folder has."""
    run = new_folder(folder, settings, threads=torch.get_num_threads())

    def stop(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == at:
            raise KilledError

    with pytest.raises(KilledError):
        Trainer(prepare(settings, data_dir=FOLDER), run).run(stop)
    again = Trainer(prepare(settings, data_dir=FOLDER), run)
    assert again.resume() == []
    assert again.progress.epoch > 0
    return again.run()


def losses(folder: Path) -> list[float]:
    return [float(row["loss"]) for row in read_table(folder / "metrics.csv")]


def accuracy(result: Trained, settings: Settings, samples: int) -> float:
    """Under PGD-20, on test images."""
    test = stratified_split(data.load(settings.data, FOLDER)[1], samples)[1]
    ball = Ball(settings.eps, settings.norm, settings.bounds)
    return run_attacks(result.model, test, plan_attacks("pgd-20", ball))[0].accuracy


@needs("svhn")
def test_svhn_learns_in_a_few_hundred_steps(tmp_path: Path) -> None:
    """The preset's model and schedule on a seventh of the samples, 600 steps, the ball growing to the end.

    With half the steps, or the ball at its size after two thirds of them, the prediction is still constant.
    """
    short = {"samples": 10_100, "validation": 100, "epochs": 6, "steps": 3, "ramp": 6}
    settings = read_preset("svhn").with_values(short)
    result = trained_with_a_kill(settings, tmp_path, at=250)
    assert result.finished
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]
    assert accuracy(result, settings, 500) > 0.25  # the most frequent digit has 0.196


@needs("cifar10")
@pytest.mark.filterwarnings("ignore::sihg.robust.data.DataWarning")
def test_cifar10_learns_at_an_eighth_of_the_width(tmp_path: Path) -> None:
    """200 steps of the preset's model, at a smaller ball at first."""
    short = {"width": 1 / 8, "samples": 5_100, "validation": 100, "epochs": 4, "steps": 5, "ramp": 4, "lr": 0.2}
    settings = read_preset("cifar10").with_values(short)
    result = trained_with_a_kill(settings, tmp_path, at=80)
    assert result.finished
    assert result.history[-1].step == 200
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]
    assert accuracy(result, settings, 500) > 0.15  # every class has 0.1


@needs("cifar10")
@pytest.mark.filterwarnings("ignore::sihg.robust.data.DataWarning")
def test_cifar10_takes_two_steps_at_full_width(tmp_path: Path) -> None:
    settings = read_preset("cifar10").with_values(
        {"samples": 200, "validation": 0, "epochs": 1, "schedule": "constant"}
    )
    folder = new_folder(tmp_path, settings, threads=torch.get_num_threads())
    trainer = Trainer(prepare(settings, data_dir=FOLDER), folder)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    result = trainer.run()
    assert result.history[-1].step == 2
    assert torch.isfinite(torch.tensor(losses(tmp_path))).all()
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
