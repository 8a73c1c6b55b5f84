"""A folder that is moved, removed or replaced while it is in use: work stops with a message, and nothing is mixed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sihg
from sihg.cli.main import main
from sihg.minimax.comparison import Comparison
from sihg.robust.evaluation import EvaluationRequest
from sihg.robust.evaluation.evaluate_run import find_targets, prepare
from sihg.robust.training.events import CheckpointSaved, EpochDone, Event, StepDone
from sihg.store.tables import read_table
from sihg.store.verify import check_folder
from tests.refused import refused

X, Y = torch.linspace(0, 1, 40 * 9).view(40, 1, 3, 3), torch.arange(40) % 2
STEPS = 4  # per epoch
Act = Callable[[Path], object]


def fit(out: Path, on_event: Callable[[Event], object] | None = None, **more: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 10, "checkpoint_minutes": 0.0, "steps": 1, **more}
    sihg.fit(model, (X, Y), method="msi-hg", eps=0.1, tau=0.05, out=out, on_event=on_event, **settings)
    return model.state_dict()


def move(out: Path) -> None:
    out.rename(out.with_name("moved"))


def remove(out: Path) -> None:
    shutil.rmtree(out)


def replace(out: Path) -> None:
    """Let another run take the place."""
    move(out)
    fit(out, seed=7)


def remove_lock(out: Path) -> None:
    (out / ".lock").unlink()


def at(step: int, kind: type[Event], act: Act, out: Path) -> Callable[[Event], None]:
    """Act once, at the first event of this kind from a step on."""
    left = [act]

    def on_event(event: Event) -> None:
        found = event.row.step if isinstance(event, EpochDone) else getattr(event, "step", 0)
        if left and isinstance(event, kind) and found >= step:
            left.pop()(out)

    return on_event


MOMENTS = [(1, StepDone), (2, CheckpointSaved), (6, StepDone), (STEPS, EpochDone), (3 * STEPS, EpochDone)]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return fit(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return fit(tmp_path_factory.mktemp("other") / "run", seed=7)


Weights = dict[str, torch.Tensor]


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(("step", "kind"), MOMENTS)
@pytest.mark.parametrize("act", [move, remove, replace, remove_lock])
def test_training_stops_and_mixes_nothing(
    tmp_path: Path, wanted: Weights, other: Weights, act: Act, step: int, kind: type[Event], *, in_files: bool
) -> None:
    out = tmp_path / "run"
    with refused("folder-moved", path=out):
        fit(out, at(step, kind, act, out), memory_files=in_files)
    if act is remove:
        assert not out.exists()  # not made anew
    if act is replace:
        found = sihg.load(out, model=nn.Sequential(nn.Flatten(), nn.Linear(9, 2))).state_dict()
        assert all(torch.equal(found[name], other[name]) for name in other)
        assert [row["epoch"] for row in read_table(out / "metrics.csv", sealed=True)] == ["1", "2", "3"]
        assert {check.result for check in check_folder(out)} == {"good"}
    if act in (move, replace):
        found = fit(tmp_path / "moved", resume=True, memory_files=in_files)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_new_run_that_was_moved_is_not_removed_when_it_fails(tmp_path: Path) -> None:
    class FailError(Exception):
        pass

    def fail(event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            shutil.rmtree(tmp_path / "run" / "checkpoints")  # the run now seems to have none
            move(tmp_path / "run")
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "precious").write_text("mine")
            raise FailError

    with pytest.raises(FailError):
        fit(tmp_path / "run", fail)
    assert (tmp_path / "run" / "precious").read_text() == "mine"
    assert (tmp_path / "moved" / "config.toml").exists()


@pytest.mark.parametrize("act", [move, remove])
def test_an_evaluation_does_not_make_its_run_anew(tmp_path: Path, act: Act) -> None:
    words = "--data digits --method natural --samples 60 --validation 10 --epochs 1 --batch-size 20 --width 0.25"
    assert main(["train", *words.split(), "--out", str(tmp_path / "run")]) == 0
    request = EvaluationRequest("natural,fgsm", samples=20, points=True)
    (target,) = find_targets([tmp_path / "run"], request)
    prepared = prepare(target)
    result = prepared.run()
    act(tmp_path / "run")
    with refused("folder-moved", path=tmp_path / "run"):
        prepared.save(result)
    assert not (tmp_path / "run").exists()


def test_a_solve_does_not_make_its_folder_anew(tmp_path: Path) -> None:
    comparison = Comparison.new("ridge", "ssi-hg", iterations=10, folder=tmp_path / "solve")
    move(tmp_path / "solve")
    with refused("folder-moved", path=tmp_path / "solve"):
        comparison.run("ssi-hg")
    comparison.close()
    assert not (tmp_path / "solve").exists()
