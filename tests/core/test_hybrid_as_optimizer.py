"""HybridGradient behaves as a torch optimiser: groups, schedulers, closures, hooks, scalers."""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sihg.core.hybrid import HybridGradient
from tests.core.networks import (
    OPTIMIZERS,
    Make,
    data,
    every_optimizer,
    loss,
    network,
    same,
    train,
)


def test_groups_and_a_group_added_on_the_way() -> None:
    def run(theta: float | None) -> nn.Sequential:
        net = network()
        optimizer: torch.optim.Optimizer = torch.optim.SGD([{"params": net[0].parameters(), "lr": 0.2}], lr=0.1)
        if theta is not None:
            optimizer = HybridGradient(optimizer, theta)
        train(net, optimizer, range(3))
        optimizer.add_param_group({"params": net[2].parameters(), "momentum": 0.5})
        net.zero_grad()  # the second layer has gathered gradients that no optimiser reset
        assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.1]
        train(net, optimizer, range(3, 10))
        if isinstance(optimizer, HybridGradient):
            assert optimizer.param_groups is optimizer.inner.param_groups
            assert list(optimizer.state_dict()["previous_gradients"]) == ([0, 1, 2, 3] if theta else [])
        return net

    assert same(run(None), run(0.0))
    assert not same(run(None), run(1.0))


def test_an_added_group_starts_with_its_own_gradient() -> None:
    p, q = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = HybridGradient(torch.optim.SGD([p], lr=1.0))
    p.grad = torch.tensor([1.0])
    optimizer.step()
    optimizer.add_param_group({"params": [q], "lr": 10.0})
    p.grad, q.grad = torch.tensor([2.0]), torch.tensor([5.0])
    optimizer.step()
    assert (p.item(), q.item()) == (-(1 + 3), -50)


def test_assigned_state_and_groups_reach_the_inner_optimiser() -> None:
    net = network()
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    train(net, optimizer, range(2))
    optimizer.state = defaultdict(dict)
    optimizer.param_groups = optimizer.param_groups[:]
    assert optimizer.inner.state == {}
    assert optimizer.param_groups is optimizer.inner.param_groups


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: StepLR(o, 3, gamma=0.5),
    "one-cycle": lambda o: OneCycleLR(o, max_lr=0.2, total_steps=20),
    "lambda": lambda o: LambdaLR(o, lambda k: 1 / (1 + k)),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=0, factor=0.5, threshold=1.0),
}


@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@pytest.mark.parametrize("make", [OPTIMIZERS["momentum"], OPTIMIZERS["adam"]], ids=["momentum", "adam"])
@pytest.mark.parametrize("theta", [0.0, 1.0])
def test_schedulers(schedule: Callable[[torch.optim.Optimizer], Any], make: Make, theta: float) -> None:
    plain, wrapped = network(), network()
    inner = make(plain.parameters())
    outer = HybridGradient(make(wrapped.parameters()), theta)
    schedulers = schedule(inner), schedule(outer)
    rates = set()
    for k in range(20):
        for net, optimizer, scheduler in zip((plain, wrapped), (inner, outer), schedulers, strict=True):
            train(net, optimizer, range(k, k + 1))
            scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))
        assert inner.param_groups[0]["lr"] == outer.param_groups[0]["lr"] == outer.inner.param_groups[0]["lr"]
        rates.add(outer.param_groups[0]["lr"])
    assert len(rates) > 5
    assert same(plain, wrapped) == (theta == 0)


@every_optimizer
def test_closures_are_evaluated_once_with_gradients(make: Make) -> None:
    plain, wrapped = network(), network()
    train(plain, HybridGradient(make(plain.parameters())), range(10))
    optimizer = HybridGradient(make(wrapped.parameters()))
    calls = []
    for k in range(10):

        def closure(k: int = k) -> float:
            assert torch.is_grad_enabled()
            optimizer.zero_grad()
            value = loss(wrapped, k)
            torch.autograd.backward(value)
            calls.append(value.item())
            return value.item()

        with torch.no_grad():
            assert optimizer.step(closure) == calls[-1]
    assert len(calls) == 10
    assert same(plain, wrapped)


def test_hooks_fire_once_per_step_and_see_the_hybrid_gradient() -> None:
    p = nn.Parameter(torch.zeros(1))
    optimizer = HybridGradient(torch.optim.SGD([p], lr=1.0))
    events: list[tuple[str, float]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: events.append((name, p.item() if p.grad is None else p.grad.item()))

    optimizer.register_step_pre_hook(note("pre"))
    optimizer.inner.register_step_pre_hook(note("pre of inner"))
    optimizer.register_step_post_hook(note("post")).remove()
    optimizer.register_step_post_hook(note("post"))
    optimizer.register_state_dict_post_hook(note("save"))
    optimizer.register_load_state_dict_pre_hook(note("load"))
    anywhere = register_optimizer_step_pre_hook(note("global"))
    try:
        for g in (1.0, 3.0):
            p.grad = torch.tensor([g])
            optimizer.step()
    finally:
        anywhere.remove()
    names = ["global", "pre", "pre of inner", "post"]
    assert events == [(name, seen) for seen in (1.0, 5.0) for name in names]
    events.clear()
    optimizer.load_state_dict(optimizer.state_dict())
    assert [name for name, _ in events] == ["save", "load"]
    copy.deepcopy(optimizer).step()  # hooks stay behind, as with torch
    assert len(events) == 2


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_unscales_first_and_skips_overflows(fused: bool) -> None:
    def make(net: nn.Module) -> HybridGradient:
        return HybridGradient(torch.optim.Adam(net.parameters(), lr=0.01, fused=fused))

    plain, scaled = network().float(), network().float()
    optimizer, other = make(plain), make(scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for k in range(10):
        for net, o in ((plain, optimizer), (scaled, other)):
            o.zero_grad()
            x, y = (t.float() for t in data(k))
            value = (net(x) - y).square().mean()
            (value if o is optimizer else scaler.scale(value)).backward()
        optimizer.step()
        scaler.step(other)
        scaler.update()
        if k == 5:  # an extra batch that overflows leaves no trace but in the scale
            other.zero_grad()
            scaler.scale(scaled(x).sum() * float("inf")).backward()
            scaler.step(other)
            scaler.update()
    assert scaler.get_scale() == 512.0
    assert same(plain, scaled)


def test_other_attributes_are_those_of_the_inner_optimiser() -> None:
    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = HybridGradient(inner, 0.5)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    assert repr(optimizer).startswith("HybridGradient(SGD (\nParameter Group 0")
    assert repr(optimizer).endswith("theta=0.5, start_at_zero=False)")
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = optimizer.nothing_of_the_kind
    with pytest.raises(AttributeError, match="inner"):
        _ = HybridGradient.__new__(HybridGradient).param_groups


def test_overridden_methods_of_the_inner_optimiser_are_called() -> None:
    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            self.zeroed = True

        def __deepcopy__(self, memo: Any) -> "Own":
            return Own([{**group, "params": copy.deepcopy(group["params"], memo)} for group in self.param_groups])

    optimizer = HybridGradient(Own(network().parameters(), lr=0.1))
    optimizer.zero_grad()
    assert optimizer.zeroed
    assert isinstance(copy.deepcopy(optimizer), HybridGradient)
    assert isinstance(copy.deepcopy(optimizer).inner, Own)
