"""HybridGradient: saved, loaded, copied and resumed."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from sihg.core.hybrid import HybridGradient
from tests.core.networks import (
    OPTIMIZERS,
    Make,
    every_optimizer,
    network,
    reload,
    same,
    train,
)
from tests.refused import refused


@every_optimizer
@pytest.mark.parametrize("start_at_zero", [False, True])
def test_saving_and_loading_changes_nothing(make: Make, start_at_zero: bool) -> None:
    net = network()
    optimizer = HybridGradient(make(net.parameters()), 0.7, start_at_zero=start_at_zero)
    train(net, optimizer, range(7))
    state, saved_net = reload(optimizer.state_dict()), reload(net.state_dict())

    fresh = network(seed=1)
    fresh.load_state_dict(saved_net)
    resumed = HybridGradient(make(fresh.parameters()))
    resumed.load_state_dict(state)
    assert (resumed.theta, resumed.start_at_zero) == (0.7, start_at_zero)
    train(net, optimizer, range(7, 20))
    train(fresh, resumed, range(7, 20))
    assert same(net, fresh)


def test_a_saved_state_is_a_snapshot_and_loading_copies() -> None:
    net = network()
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1))
    train(net, optimizer, range(3))
    state = optimizer.state_dict()
    before = copy.deepcopy(state["previous_gradients"])
    train(net, optimizer, range(3, 6), set_to_none=False)
    assert list(before) == [0, 1, 2, 3]
    assert all(torch.equal(before[i], state["previous_gradients"][i]) for i in before)
    optimizer.load_state_dict(state)
    train(net, optimizer, range(6, 9), set_to_none=False)
    assert all(torch.equal(before[i], state["previous_gradients"][i]) for i in before)


def test_loading_casts_to_the_parameter() -> None:
    net, single = network(), network().float()
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    train(net, optimizer, range(2))
    other = HybridGradient(torch.optim.SGD(single.parameters(), lr=0.1, momentum=0.9))
    other.load_state_dict(optimizer.state_dict())
    assert {q.dtype for q in other.previous.values()} == {torch.float32}


def test_loading_needs_our_keys() -> None:
    net = network()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.5))
    with refused("hybrid-state-keys", key="theta"):
        optimizer.load_state_dict(plain.state_dict())
    state = optimizer.state_dict()
    del state["previous_gradients"]
    with refused("hybrid-state-keys", key="previous_gradients"):
        optimizer.load_state_dict(state)
    optimizer.inner.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_loading_the_state_of_another_model_changes_nothing() -> None:
    net = network()
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1))
    train(net, optimizer, range(2))
    state = optimizer.state_dict()

    wide = nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 3))
    other = HybridGradient(torch.optim.SGD(wide.parameters(), lr=0.5), 0.5)
    with refused("hybrid-state-shape", parameter=0, shape=(7, 5)):
        other.load_state_dict(state)
    short = HybridGradient(torch.optim.SGD(net[0].parameters(), lr=0.5), 0.5)
    with refused("hybrid-state-shape", parameter=2, shape=(3, 7)):
        short.load_state_dict(state)
    with refused("hybrid-theta-range"):
        optimizer.load_state_dict({**state, "theta": float("nan")})
    two = HybridGradient(
        torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=0.5), 0.5
    )
    with pytest.raises(ValueError, match="different number of parameter groups"):
        two.load_state_dict(state)
    for untouched in (other, short, two):
        assert (untouched.theta, untouched.param_groups[0]["lr"], untouched.previous) == (0.5, 0.5, {})


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@every_optimizer
def test_deepcopy_and_pickle(make: Make, clone: Callable[[Any], Any]) -> None:
    net = network()
    optimizer = HybridGradient(make(net.parameters()), 0.7)
    scheduler = StepLR(optimizer, 1)  # it patches `step` of the instance, which must not travel
    train(net, optimizer, range(5))
    twin_net, twin = clone((net, optimizer))
    train(net, optimizer, range(5, 12))
    assert not same(net, twin_net)
    train(twin_net, twin, range(5, 12))
    assert same(net, twin_net)
    assert scheduler.optimizer is optimizer


def test_scheduled_runs_resume() -> None:
    def start() -> tuple[nn.Sequential, HybridGradient, OneCycleLR]:
        net = network()
        optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        return net, optimizer, OneCycleLR(optimizer, max_lr=0.2, total_steps=20)

    def go(net: nn.Module, optimizer: HybridGradient, scheduler: OneCycleLR, steps: range) -> None:
        for k in steps:
            train(net, optimizer, range(k, k + 1))
            scheduler.step()

    run = start()
    go(*run, range(9))
    again = start()
    for i in range(3):
        again[i].load_state_dict(reload(run[i].state_dict()))
    go(*run, range(9, 20))
    go(*again, range(9, 20))
    assert same(run[0], again[0])


@pytest.mark.parametrize("name", ["momentum", "adam", "fused"])
def test_a_loaded_state_lies_in_memory_as_its_parameters_do(name: str) -> None:
    """Fused kernels run over the memory of p, its gradient and its state side by side, whatever their strides say."""
    fused_sgd: Make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)  # noqa: E731
    make = fused_sgd if name == "fused" else OPTIMIZERS[name]
    torch.manual_seed(0)
    start = nn.Conv2d(3, 4, 3).state_dict()
    ends = []
    for loads in (False, True):
        net = nn.Conv2d(3, 4, 3)
        net.load_state_dict(start)
        net.weight.data = net.weight.data.contiguous(memory_format=torch.channels_last)
        optimizer = HybridGradient(make(net.parameters()))
        for k in range(4):
            if loads and k == 2:
                saved = _contiguous(optimizer.state_dict())
                optimizer = HybridGradient(make(net.parameters()))
                optimizer.load_state_dict(saved)
                for p, state in optimizer.state.items():
                    buffers = [t for t in (*state.values(), optimizer.previous[p]) if t.shape == p.shape]
                    assert len(buffers) > 1
                    assert all(t.stride() == p.stride() for t in buffers)
            optimizer.zero_grad()
            net(torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(k))).square().sum().backward()
            optimizer.step()
        ends.append(net.weight.detach().clone())
    assert torch.equal(*ends)


def _contiguous(tree: Any) -> Any:
    """A state as files keep it."""
    if isinstance(tree, dict):
        return {key: _contiguous(value) for key, value in tree.items()}
    return tree.contiguous() if isinstance(tree, Tensor) else tree
