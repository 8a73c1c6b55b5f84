"""The shared verbs: gradients, ascent, the pass that trains, scoped modes."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sihg.errors import InputError
from sihg.robust.gradients import (
    ascend,
    backward,
    cross_entropy_sum,
    evaluation_mode,
    frozen_statistics,
    inner_mode,
    input_gradient,
    slope,
)
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.methods.nets import gradients, net, samples, watched


def test_each_row_has_the_gradient_of_its_own_loss() -> None:
    x, y = samples(5)
    model = net("smooth")
    got = input_gradient(model, x, y)
    for i in range(5):
        point = x[i : i + 1].clone().requires_grad_()
        cross_entropy(model(point), y[i : i + 1]).backward()
        assert point.grad is not None
        torch.testing.assert_close(got[i], point.grad[0], rtol=1e-12, atol=1e-14)


def test_a_gradient_leaves_nothing_behind() -> None:
    x, y = samples(5)
    model = net("plain")
    with torch.no_grad():
        g = input_gradient(model, x, y)
    assert torch.equal(g, slope(model, x, y)(torch.zeros_like(x)))
    assert not x.requires_grad
    assert not g.requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_ascend_is_its_steps_by_hand() -> None:
    x, y = samples(6)
    model = net("smooth")
    delta = torch.zeros_like(x)
    with watched(model) as points:
        given_back = ascend(slope(model, x, y), delta, Ball(0.2).around(x), 0.15, 3)
    assert given_back is delta
    by_hand, low, high = torch.zeros_like(x), (-x).clamp(min=-0.2), (1 - x).clamp(max=0.2)
    for point in points.inputs:
        assert torch.equal(point, x + by_hand)
        by_hand = (by_hand + 0.15 * input_gradient(model, point, y).sign()).clamp(low, high)
    assert torch.equal(delta, by_hand)
    assert len(points.inputs) == 3


def test_backward_adds_the_gradient_of_the_sum_over_the_global_size() -> None:
    x, y = samples(8)
    whole, parts = net("smooth"), net("smooth")
    loss = backward(cross_entropy_sum(whole(x), y), x, 8)
    assert torch.equal(loss, cross_entropy_sum(whole(x), y).detach())
    assert not loss.requires_grad
    twin = net("smooth")
    cross_entropy(twin(x), y).backward()
    torch.testing.assert_close(gradients(whole), gradients(twin), rtol=1e-12, atol=1e-15)
    for rows in (slice(0, 3), slice(3, 8)):
        backward(cross_entropy_sum(parts(x[rows]), y[rows]), x[rows], 8)
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=1e-12, atol=1e-15)


def normed() -> nn.Sequential:
    """All that keeps statistics, one of them in evaluation mode, one that keeps none, and dropout."""
    model = nn.Sequential(
        nn.BatchNorm2d(2),
        nn.InstanceNorm2d(2, track_running_stats=True),
        nn.BatchNorm2d(2, momentum=None),
        nn.Dropout(0.5),
        nn.BatchNorm2d(2),
        nn.BatchNorm2d(2, track_running_stats=False),
    )
    model[4].eval()
    return model.double()


def test_frozen_statistics_use_the_batch_and_keep_nothing() -> None:
    x = torch.rand(6, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 2
    model = normed()
    del model[3]  # dropout would differ from pass to pass
    before = deepcopy(model.state_dict())
    with frozen_statistics(model):
        with frozen_statistics(model):  # an attack inside an attack
            frozen = model(x)
        assert torch.equal(model(x), frozen)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(x), frozen)
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert len(changed) == 8  # mean and variance of three, and the count of two: instance normalisation has none


class StopError(Exception):
    pass


@pytest.mark.parametrize("mode", ["batch", "running"])
@pytest.mark.parametrize("fails", [False, True])
def test_modes_are_restored_for_each_module(mode: str, fails: bool) -> None:
    model = normed()
    before, state = [m.training for m in model.modules()], deepcopy(model.state_dict())
    tracking = [getattr(m, "track_running_stats", None) for m in model.modules()]
    try:
        with inner_mode(model, mode):
            assert any(m.training for m in model.modules()) == (mode == "batch")
            model(torch.arange(72, dtype=torch.float64).view(4, 2, 3, 3))
            if fails:
                raise StopError
    except StopError:
        assert fails
    assert [m.training for m in model.modules()] == before
    assert [getattr(m, "track_running_stats", None) for m in model.modules()] == tracking
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_evaluating_uses_the_running_statistics() -> None:
    x, _ = samples(4)
    model = net("bn")
    with evaluation_mode(model):
        each = torch.cat([model(row[None]) for row in x])
        torch.testing.assert_close(model(x), each, rtol=1e-12, atol=1e-14)


def test_an_unknown_mode() -> None:
    with refused("unknown-statistics", name="none"):
        inner_mode(net("bn"), "none").__enter__()


@pytest.mark.parametrize(("labels", "found"), [([0, 10], "from 0 to 10"), ([-1, 3], "from -1 to 3")])
def test_a_label_without_an_output(labels: list[int], found: str) -> None:
    with pytest.raises(InputError, match=f"labels go {found}, but the model has 10 outputs: labels count from 0"):
        cross_entropy_sum(torch.zeros(2, 10), torch.tensor(labels))
