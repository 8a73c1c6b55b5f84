"""Events of a trainer, closing them early, and the checks before a run, which happen once."""

import ast
import signal
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sihg.cli.main import main
from sihg.robust import methods
from sihg.robust.attacks.input_checks import check_model
from sihg.robust.methods.registry import METHODS
from sihg.robust.training.events import CheckpointSaved, EpochDone, StepDone, TrainingHistory
from sihg.robust.training.fit import fit
from sihg.store.schema import MetricsRow
from tests.robust.small import STEPS, assert_same, digits, fingerprint, settings
from tests.robust.training.trainers import trainer


@pytest.fixture(autouse=True)
def _a_quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _handle: None)


@pytest.mark.parametrize("count", [1, 3, 1 + STEPS, 2 + STEPS, 3 + STEPS, 2 * (2 + STEPS)])
def test_closing_the_events_is_clean_and_another_call_goes_on(tmp_path: Path, count: int) -> None:
    chosen = settings(steps=2, memory_files=True, validation=20, evaluate_with="pgd-2", ema=0.5)
    whole = trainer(chosen, tmp_path / "whole")
    whole.run()
    handler = signal.getsignal(signal.SIGINT)
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    run = trainer(chosen, tmp_path / "closed")
    with closing(run.events()) as events:
        assert len(list(islice(events, count))) == count
    assert signal.getsignal(signal.SIGINT) == handler
    assert torch.equal(torch.rand(2), expected)
    assert run.run().finished
    assert_same(fingerprint(run), fingerprint(whole))


def test_an_epoch_closed_before_its_checkpoint_is_saved_first(tmp_path: Path) -> None:
    """Else mapped files would be overwritten that the newest checkpoint still needs."""
    chosen = settings(steps=2, memory_files=True)
    run = trainer(chosen, tmp_path)
    with closing(run.events()) as events:
        assert next(event for event in events if isinstance(event, EpochDone)).row.epoch == 1
    first = next(run.events())
    assert isinstance(first, CheckpointSaved)
    assert (first.step, first.path.name) == (STEPS, f"last-{STEPS:08d}")


def test_a_step_has_the_metrics_so_far() -> None:
    run = trainer(settings(method="natural", epochs=1))
    steps = [event for event in run.events() if isinstance(event, StepDone)]
    assert [event.row.step for event in steps] == [1, 2, 3, 4]
    assert steps[-1].row.loss == pytest.approx(run.rows[0].loss)


def test_a_run_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []

    def check_and_count(*given: Any, **options: Any) -> None:
        checked.append(given)
        check_model(*given, **options)

    monkeypatch.setattr("sihg.robust.training.preflight.check_model", check_and_count)
    sizes = ["--epochs", "1", "--samples", "60", "--width", "1/4", "--validation", "0", "--steps", "1"]
    assert main(["train", "--out", str(tmp_path / "cli"), *sizes]) == 0
    assert len(checked) == 1
    model = trainer(settings()).model
    checked.clear()
    fit(model, digits(), eps=0.1, epochs=1, steps=1, memory_files=True, out=tmp_path / "fit")
    assert len(checked) == 1


def test_no_module_outside_methods_asks_for_the_class_of_a_method() -> None:
    source = Path(methods.__file__).parents[2]
    classes = {entry.class_name for entry in METHODS.values()}
    for path in source.rglob("*.py"):
        if path.parent == Path(methods.__file__).parent:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                names |= {name.attr for name in ast.walk(node.args[1]) if isinstance(name, ast.Attribute)}
                allowed = {"Natural"} if "attacks" in path.parts or "evaluation" in path.parts else set()
                assert not names & classes - allowed, f"{path}:{node.lineno}"


def test_a_history_is_a_sequence_that_draws_itself(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [
        {"epoch": 1, "step": 4, "loss": 2.3, "accuracy": 0.1},
        {"epoch": 2, "step": 8, "loss": 2.0, "accuracy": 0.3, "natural": 0.4, "robust": 0.25},
    ]
    history = TrainingHistory(MetricsRow(**row) for row in values)
    assert len(history) == 2
    assert history[-1].robust == 0.25
    assert list(history[:1]) == [history[0]]
    assert repr(history) == "TrainingHistory(2 epochs, loss 2.000, natural 40.0 %, robust 25.0 %)"
    assert repr(TrainingHistory()) == "TrainingHistory(0 epochs)"
    left, right = history.plot(tmp_path / "history.png").axes
    assert np.asarray(left.get_lines()[0].get_xydata()).tolist() == [[1, 2.3], [2, 2.0]]
    assert [np.asarray(line.get_xydata()).tolist() for line in right.get_lines()] == [[[2, 40]], [[2, 25]]]
    assert (tmp_path / "history.png").stat().st_size > 1000
    assert len(TrainingHistory().plot().axes) == 2
    right = TrainingHistory(history[:1]).plot().axes[1]
    assert np.asarray(right.get_lines()[0].get_xydata()).tolist() == [[1, 10]]
    assert right.get_ylabel() == "training accuracy (%)"


def test_a_result_is_one_line() -> None:
    trained = trainer(settings(method="natural", epochs=2, validation=20, evaluate_with="pgd-1")).run()
    assert trained.best is not None
    shown = repr(trained)
    assert shown.startswith(f"Trained(2 epochs done, loss {trained.history[-1].loss:.3f}, natural ")
    assert shown.endswith(f"best epoch {trained.best.epoch})")
    assert "\n" not in shown
