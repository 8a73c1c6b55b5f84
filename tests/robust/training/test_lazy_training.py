"""Training and evaluating on samples that are not in memory gives bit by bit what it gives in memory."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sihg
from sihg.robust import models
from sihg.robust.data import DataWarning
from sihg.robust.data.samples import open_samples
from sihg.robust.data.sources import open_data
from sihg.robust.training.events import StepDone
from tests.refused import refused
from tests.robust.data.lazy_sets import Items, labels, write_npy

SETTINGS: dict[str, Any] = {"method": "msi-hg", "eps": 0.1, "epochs": 2, "steps": 2, "lr": 0.1, "batch_size": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).random((40, 1, 8, 8)).astype(np.float32)
    return write_npy(tmp_path / "data", x=x, y=labels())


def leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.robust.data.samples.max_memory", lambda: 100)


def small(shape: tuple[int, ...] = (1, 8, 8)) -> torch.nn.Module:
    return models.build("small-cnn", shape, 4, width=0.25, seed=0)


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def trained(folder: Path, **settings: Any) -> Any:
    return sihg.fit(small(), open_data(f"npy:{folder}")[0], **SETTINGS, **settings)


def test_a_run_equals_that_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"validation": 8, "flip": True, "crop": 1, "samples": 30}
    here = trained(folder, **settings)
    leave_no_room(monkeypatch)
    for workers in (0, 2):
        there = trained(folder, **settings, workers=workers)
        assert torch.equal(weights(there.model), weights(here.model))
        assert [row.loss for row in there.history] == [row.loss for row in here.history]
        assert there.best.robust == here.best.robust


def test_a_run_is_resumed_whether_its_data_is_in_memory_or_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(folder)

    def stop(event: object) -> None:
        if isinstance(event, StepDone) and event.step == 6:
            raise KeyboardInterrupt

    for first_in_memory in (True, False):
        out = tmp_path / str(first_in_memory)
        with monkeypatch.context() as patch:
            if not first_in_memory:
                leave_no_room(patch)
            with pytest.raises(KeyboardInterrupt):
                trained(folder, out=out, checkpoint_minutes=0, on_event=stop)
        with monkeypatch.context() as patch:
            if first_in_memory:
                leave_no_room(patch)
            again = trained(folder, out=out, resume=True, checkpoint_minutes=0)
        assert torch.equal(weights(again.model), weights(whole.model))


def test_other_data_is_noticed_on_a_resume(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_no_room(monkeypatch)
    trained(folder, out=tmp_path / "run")
    np.save(folder / "y.npy", labels()[::-1])
    with refused("resume-other-data"):
        trained(folder, out=tmp_path / "run", resume=True)
    np.save(folder / "y.npy", labels())
    x = np.load(folder / "x.npy")
    np.save(folder / "x.npy", x[::-1])
    with refused("resume-other-data"):
        trained(folder, out=tmp_path / "run", resume=True)


def test_an_evaluation_equals_that_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = small(), []
    for _ in range(2):
        data = open_data(f"npy:{folder}")[0]
        arguments: dict[str, Any] = {"eps": 0.05, "attacks": "natural,pgd-5,noise-3", "bounds": (0, 1)}
        found.append(sihg.evaluate(model, data, **arguments))
        leave_no_room(monkeypatch)
    here, there = found
    for a, b in zip(here.outcomes, there.outcomes, strict=True):
        assert torch.equal(a.broken, b.broken)
        assert torch.equal(a.margin.nan_to_num(), b.margin.nan_to_num())
    assert [check.result for check in here.checks] == [check.result for check in there.checks]


def test_a_subset_of_a_dataset_is_all_that_is_read() -> None:
    items = Items(400)
    sihg.fit(small((1, 4, 5)), items, **SETTINGS | {"samples": 20})
    assert items.reads < 30
    items = Items(400)
    sihg.evaluate(small((1, 4, 5)), items, eps=0.1, attacks="natural", samples=20)
    assert items.reads < 30


def test_a_random_dataset_repeats_with_any_number_of_workers_and_says_what_delta_does() -> None:
    runs = []
    for workers in (0, 1):
        with pytest.warns(DataWarning, match="follows none of them") as caught:
            runs.append(sihg.fit(small((1, 4, 5)), Items(noise="torch"), **SETTINGS, workers=workers))
        assert len(caught) == 1
    assert torch.equal(weights(runs[0].model), weights(runs[1].model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sihg.fit(small((1, 4, 5)), Items(noise="torch"), **SETTINGS | {"method": "pgd", "epochs": 1})


def test_a_random_dataset_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    settings = SETTINGS | {"method": "pgd"}
    data = Items(noise="numpy")
    whole = sihg.fit(small((1, 4, 5)), data, **settings)

    def stop(event: object) -> None:
        if isinstance(event, StepDone) and event.step == 7:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        sihg.fit(small((1, 4, 5)), data, **settings, out=out, checkpoint_minutes=0, on_event=stop)
    again = sihg.fit(small((1, 4, 5)), data, **settings, out=out, checkpoint_minutes=0, resume=True, workers=1)
    assert torch.equal(weights(again.model), weights(whole.model))


def test_a_row_outside_the_bounds_is_named_in_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.load(folder / "x.npy")
    x[3] = 2.0
    np.save(folder / "x.npy", x)
    leave_no_room(monkeypatch)
    monkeypatch.setattr("sihg.robust.data.lazy_rows.MAX_PROBED", 2)
    train = open_samples(open_data(f"npy:{folder}")[0])
    with refused("row-outside-bounds", row=3):
        sihg.fit(small(), train.take(torch.arange(len(train))), **SETTINGS)
