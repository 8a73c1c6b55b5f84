"""Warnings: each sign of a run that goes wrong is seen, said once, and a healthy run gives none."""

import pytest
import torch
from torch import nn

from sihg.robust.training.events import ONE_CLASS_SHARE, Event, WarningRaised, check_epoch
from sihg.store.schema import MetricsRow, MonitorState
from tests.robust.small import settings
from tests.robust.training.trainers import trainer


def row(epoch: int = 2, **values: float | None) -> MetricsRow:
    healthy = {"accuracy": 0.8, "robust": 0.6, "moved": 0.1, "saturated": 0.5}
    return MetricsRow.from_cells({"epoch": epoch, "step": 4 * epoch, "loss": 1.0, **healthy, **values})


@pytest.mark.parametrize(
    ("bad", "most", "kind", "words"),
    [
        ({}, 0.999, "constant", "99.9% of a batch's predictions in epoch 2 were one class: start with a smaller"),
        (
            {"robust": 0.39},
            0.2,
            "overfitting",
            "robust accuracy fell from 60.0% to 39.0% in epoch 2, while it is 80.0% under the training",
        ),
        ({"saturated": 0.99}, 0.2, "saturated", "99.0% of the stored perturbations of epoch 2 lie on the boundary"),
        ({"moved": 1e-4}, 0.2, "still", "moved by 0.0001 eps on average in epoch 2: raise tau or step_size"),
    ],
)
def test_each_sign_is_reported_once(bad: dict[str, float], most: float, kind: str, words: str) -> None:
    state = MonitorState()
    assert check_epoch(state, row(1), 0.2) == []
    (warning,) = check_epoch(state, row(2, **bad), most)
    assert (warning.kind, warning.epoch) == (kind, 2)
    assert words in warning.text
    assert check_epoch(state, row(3, **bad), most) == []
    assert state.said == [kind]


def test_signs_come_together_and_apart() -> None:
    state = MonitorState()
    assert len(check_epoch(state, row(1, saturated=1.0, robust=0.9), 1.0)) == 2
    assert len(check_epoch(state, row(2, saturated=1.0, robust=0.1, moved=0.0), 1.0)) == 2


def test_a_slow_decline_is_measured_from_the_best() -> None:
    state = MonitorState()
    falls = [check_epoch(state, row(epoch, robust=share), 0.2) for epoch, share in enumerate([0.6, 0.5, 0.45, 0.39], 1)]
    assert [len(warnings) for warnings in falls] == [0, 0, 0, 1]


def test_rows_without_a_memory_or_an_evaluation() -> None:
    nothing = row(2, accuracy=0.5, robust=None, moved=None, saturated=None)
    assert check_epoch(MonitorState(best=0.9), nothing, ONE_CLASS_SHARE - 1e-3) == []


def test_a_first_epoch_may_stand_still() -> None:
    assert check_epoch(MonitorState(), row(1, moved=0.0), 0.2) == []


def constant_model() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.zeros_(model.get_parameter("1.weight"))
    with torch.no_grad():
        model.get_parameter("1.bias").copy_(torch.eye(10)[3] * 50)
    return model


def test_a_constant_prediction_is_seen_in_training() -> None:
    events: list[Event] = []
    chosen = settings(method="fgsm", epochs=2, lr=1e-6)
    trained = trainer(chosen, model=constant_model()).run(events.append)
    assert len(trained.warnings) == 1
    assert "100.0% of a batch's predictions in epoch 1 were one class" in trained.warnings[0]
    raised = [(event.kind, event.text) for event in events if isinstance(event, WarningRaised)]
    assert raised == [("constant", trained.warnings[0])]


def test_saturated_and_still_memories_are_seen_in_training() -> None:
    one_step = settings(eps=0.01, tau=0.02, steps=1, step_size=0.03, bounds=None, epochs=1)
    corners = trainer(one_step, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10))).run()
    assert any("lie on the boundary" in text for text in corners.warnings)
    still = trainer(settings(tau=1e-5, step_size=1e-5, memory="fp32", epochs=2)).run()
    assert any("raise tau or step_size" in text for text in still.warnings)
    sphere = trainer(settings(norm="l2", eps=1, tau=1, steps=3, bounds=None, epochs=1)).run()
    assert (sphere.history[0].saturated or 0) > 0.98
    assert sphere.warnings == []  # on the sphere is where they belong


def test_a_healthy_run_gives_none() -> None:
    chosen = settings(tau=0.05, steps=2, epochs=6, batch_size=10, validation=20, eps=0.1)
    trained = trainer(chosen).run()
    assert (trained.history[-1].accuracy or 0) > 0.5
    assert trained.warnings == []


def test_data_of_nearly_one_class_is_no_constant_prediction() -> None:
    assert check_epoch(MonitorState(), row(1, accuracy=0.99), 0.99) == []


@pytest.mark.parametrize(("ema", "is_short"), [(0.998, True), (0.9, True), (0.5, False), (0.0, False)])
def test_an_average_that_looks_back_further_than_the_run(ema: float, is_short: bool) -> None:
    run = trainer(settings(method="natural", epochs=2, batch_size=10, ema=ema, validation=0))
    said = [text for text in run.run().warnings if "averaged weights" in text]
    steps = 2 * run.prepared.steps
    back = round(1 / (1 - ema))
    words = (
        f"{ema ** (steps - 1):.0%} of the averaged weights, which are evaluated, are those of the first step: ema = "
    )
    words += f"{ema:g} averages over {back} steps, and the run had {steps}: lower ema, or train longer"
    assert said == ([words] if is_short else [])


@pytest.mark.parametrize(("ramp", "is_long"), [(3, True), (2, True), (1.5, False), (0, False)])
def test_a_run_that_ends_before_its_ball_has_grown(ramp: float, is_long: bool) -> None:
    said = trainer(settings(method="pgd", steps=1, ramp=ramp, epochs=2, validation=0, eps=0.25)).run().warnings
    words = f"the radius grows over ramp = {ramp:g} epochs and the run had 2, so it never trained at eps = 0.25: "
    assert [text for text in said if "ramp =" in text] == [words + "shorten the ramp, or train longer"] * is_long
