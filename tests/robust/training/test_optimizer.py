"""The optimiser that methods are handed: what it does with a gradient, in which order, and what it refuses."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from sihg.core.hybrid import HybridGradient
from sihg.core.processes import ALONE
from sihg.errors import InputError
from sihg.parse import Value
from sihg.robust.training.lanes import LaneSum
from sihg.robust.training.optimizer import TrainingOptimizer, build_optimizer
from sihg.robust.training.schedules import Constant, Cosine, Cyclic
from tests.refused import refused
from tests.robust.small import STEPS, settings
from tests.robust.training.trainers import trainer


class One(nn.Module):
    """One parameter, whose gradients the tests choose."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))


def plain(model: nn.Module, lr: float = 1.0, theta: float = 0.0) -> HybridGradient:
    return build_optimizer(model, "sgd", {"lr": lr}, theta)


def give(model: One, *gradient: float) -> None:
    model.w.grad = torch.tensor(gradient, dtype=torch.float64)


def test_clipping_bounds_the_step() -> None:
    model = One()
    optimizer = TrainingOptimizer(model, plain(model), Constant(1.0), clip=0.5)
    give(model, 3.0, 4.0)
    optimizer.step()
    torch.testing.assert_close(model.w.data, torch.tensor([-0.3, -0.4], dtype=torch.float64), rtol=1e-6, atol=0)
    before = model.w.detach().clone()
    give(model, 0.3, 0.0)
    optimizer.step()
    torch.testing.assert_close(before - model.w.data, torch.tensor([0.3, 0.0], dtype=torch.float64))  # short ones stay


def test_the_schedule_the_hybrid_gradient_and_the_average_by_hand() -> None:
    model = One()
    schedule = Cyclic([(0, 0.5), (2, 1.5)])
    optimizer = TrainingOptimizer(model, plain(model, 1.5, theta=1.0), schedule, ema=0.75)
    optimizer.time = 0.0
    give(model, 1.0, 0.0)
    optimizer.step()  # the first: w = -0.5 g, and the average starts there
    assert model.w.tolist() == [-0.5, 0.0]
    optimizer.time = 1.0
    give(model, 2.0, 1.0)
    optimizer.step()  # w -= 1.0 (2 g - g_before)
    assert optimizer.lr == 1.0
    assert model.w.tolist() == [-3.5, -2.0]
    assert optimizer.average is not None
    assert optimizer.evaluated is optimizer.average.module
    assert optimizer.evaluated.get_parameter("w").tolist() == [0.75 * -0.5 + 0.25 * -3.5, 0.25 * -2.0]


def test_without_an_average_the_model_itself_is_evaluated() -> None:
    model = One()
    assert TrainingOptimizer(model, plain(model), Constant(1.0)).evaluated is model


def in_lanes(model: nn.Module, inner: HybridGradient, lanes: int) -> TrainingOptimizer:
    optimizer = TrainingOptimizer(model, inner, Constant(1.0))
    optimizer.lanes = LaneSum(model, optimizer.parameters, ALONE, lanes)
    optimizer.lanes.begin()
    return optimizer


def test_lanes_add_up_to_one_step() -> None:
    model = One()
    optimizer = in_lanes(model, plain(model), 4)
    assert optimizer.lanes is not None
    for place in range(4):
        if place == 2:
            optimizer.lanes.skip()  # has no sample in this batch
            continue
        optimizer.lanes.enter(1 / 3)
        optimizer.zero_grad()
        assert model.w.grad is None
        (model.w * torch.tensor([1.0, place])).sum().backward()
        optimizer.step()
        assert model.w.tolist() == [0.0, 0.0]
    optimizer.apply()
    assert model.w.tolist() == [-3.0, -4.0]
    optimizer.zero_grad()
    assert model.w.grad is None


def test_lanes_that_were_cut_short_are_forgotten() -> None:
    model = One()
    optimizer = in_lanes(model, plain(model), 2)
    assert optimizer.lanes is not None
    optimizer.lanes.enter(0.5)
    give(model, 7.0, 7.0)
    optimizer.step()
    optimizer.lanes.begin()
    for gradient in (1.0, 2.0):
        optimizer.lanes.enter(0.5)
        optimizer.zero_grad()
        give(model, gradient, 0.0)
        optimizer.step()
    optimizer.apply()
    assert model.w.tolist() == [-3.0, 0.0]


def test_a_lane_steps_once() -> None:
    model = One()
    optimizer = in_lanes(model, plain(model), 2)
    assert optimizer.lanes is not None
    optimizer.lanes.enter(1.0)
    with refused("method-without-step"):
        optimizer.lanes.leave()
    give(model, 1.0, 0.0)
    optimizer.step()
    with refused("method-steps-lanes"):
        optimizer.step()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_changes_nothing(bad: float) -> None:
    model = One()
    optimizer = TrainingOptimizer(model, plain(model, theta=1.0), Constant(0.25), ema=0.5, clip=1.0)
    optimizer.time = 1.5
    give(model, 1.0, bad)
    with refused("training-diverged", epochs=1.5, lr=0.25):
        optimizer.step()
    assert model.w.tolist() == [0.0, 0.0]
    assert optimizer.inner.previous == {}


def test_parameters_without_a_gradient_stay() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    before = {name: t.clone() for name, t in model["unused"].state_dict().items()}
    optimizer = TrainingOptimizer(model, plain(model, theta=1.0), Constant(1.0))
    model["used"](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert all(torch.equal(before[name], t) for name, t in model["unused"].state_dict().items())


def test_optimisers_by_name_with_their_options() -> None:
    model = nn.Linear(2, 1)
    adam = build_optimizer(model, "AdamW", {"lr": 0.1, "betas": [0.5, 0.6], "theta": 9.0}, 0.5)
    assert isinstance(adam.inner, torch.optim.AdamW)
    assert adam.param_groups[0]["betas"] == (0.5, 0.6)
    assert adam.theta == 0.5


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("sdg", {}, "unknown-optimizer"),
        ("adam", {"momentum": 0.9}, "option-unknown"),
        ("sgd", {"lr": -1.0}, "optimizer-rejects"),
        ("sgd", {"lr": "abc"}, "optimizer-rejects"),
        ("sgd", {"lr": 0.1, "nesterov": True}, "optimizer-rejects"),
        ("sparseadam", {}, "optimizer-rejects"),
        ("adam", {"capturable": True}, "optimizer-rejects"),
        ("adamw", {"betas": [0.9]}, "optimizer-option-value"),
        ("adamw", {"betas": 0.9}, "optimizer-option-value"),
        ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": "maybe"}, "optimizer-option-value"),
        ("sgd", {"lr": 0.1, "weight_decay": math.nan}, "optimizer-option-value"),
        ("adam", {"betas": [0.9, math.inf]}, "optimizer-option-value"),
    ],
)
def test_what_would_fail_later_or_pass_silently_is_refused_now(name: str, options: dict[str, Value], code: str) -> None:
    with refused(code):
        build_optimizer(nn.Linear(2, 1), name, options, 0.0)


def test_messages_name_the_option_and_the_remedy() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(
        InputError, match=r"optimizer.betas must be 2 numbers such as \[0.9, 0.999\], got \(0.9,\): leave"
    ):
        build_optimizer(model, "adamw", {"betas": [0.9]}, 0.0)
    with pytest.raises(InputError, match=r"'adam' has no setting 'momentum': its settings are lr, betas"):
        build_optimizer(model, "adam", {"momentum": 0.9}, 0.0)
    with pytest.raises(InputError, match=r"'sgd' rejects its options .*Invalid learning rate.*: change them"):
        build_optimizer(model, "sgd", {"lr": -1.0}, 0.0)
    with pytest.raises(InputError, match="must step without a closure"):
        build_optimizer(model, "lbfgs", {}, 0.0)


@pytest.mark.parametrize(("method", "lanes"), [("msi-hg", 1), ("msi-hg", 2), ("free", 1), ("free", 4)])
def test_every_step_of_a_run_has_the_learning_rate_of_its_time(
    method: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    step = HybridGradient.step

    def record(self: HybridGradient, *args: Any) -> Any:
        used.append(self.inner.param_groups[0]["lr"])
        return step(self, *args)

    monkeypatch.setattr(HybridGradient, "step", record)
    chosen = settings(epochs=3, method=method, lanes=lanes, lr=0.1, schedule="cosine")
    run = trainer(chosen)
    used.clear()  # of the step that tries the options
    run.run()
    replays = getattr(run.method, "replays", 1)
    expected = [Cosine(0.1, 3)(number / STEPS) for number in range(3 * STEPS) for _ in range(replays)]
    assert used == expected
    assert len(set(used)) == 3 * STEPS
