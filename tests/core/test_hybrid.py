import copy
import doctest
import io
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

import sihg.core.hybrid
from sihg.core.hybrid import HybridGradient, hybrid
from sihg.errors import InputError

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def data(k: int) -> tuple[Tensor, Tensor]:
    """Batch number k: every step has its own, as in stochastic training."""
    generator = torch.Generator().manual_seed(1000 + k)
    return (
        torch.randn(8, 5, generator=generator, dtype=torch.float64),
        torch.randn(8, 3, generator=generator, dtype=torch.float64),
    )


def loss(net: nn.Module, k: int) -> Tensor:
    x, y = data(k)
    value: Tensor = (net(x) - y).square().mean()
    return value


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range, *, set_to_none: bool = True) -> None:
    for k in steps:
        optimizer.zero_grad(set_to_none=set_to_none)
        torch.autograd.backward(loss(net, k))
        optimizer.step()


def train_by_hand(
    net: nn.Module, optimizer: torch.optim.Optimizer, steps: range, theta: float, start_at_zero: bool = False
) -> None:
    """The plain twin: gradients by `autograd.grad`, copies everywhere, one parameter at a time."""
    parameters = list(net.parameters())
    previous: list[Tensor] | None = None
    for k in steps:
        gradients = torch.autograd.grad(loss(net, k), parameters)
        if previous is None:
            previous = [torch.zeros_like(g) if start_at_zero else g for g in gradients]
            first = not start_at_zero
        for p, g, q in zip(parameters, gradients, previous, strict=True):
            p.grad = g.clone() if first else hybrid(g, q, theta)
        previous, first = [g.clone() for g in gradients], False
        optimizer.step()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def weights(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def reload(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


# The equation


def test_hybrid_is_the_formula() -> None:
    g, q = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0])
    assert hybrid(g, q, 0.5).tolist() == [1.5 * 1 - 0.5 * 3, 1.5 * -2 - 0.5 * 5]
    assert torch.equal(hybrid(g, q, 0.0), g)


def test_three_steps_by_hand() -> None:
    p = nn.Parameter(torch.tensor([0.0], dtype=torch.float64))
    optimizer = HybridGradient(torch.optim.SGD([p], lr=1.0), theta=0.5)
    for g, seen, now in [(4.0, 4.0, -4.0), (2.0, 1.5 * 2 - 0.5 * 4, -5.0), (-1.0, 1.5 * -1 - 0.5 * 2, -2.5)]:
        p.grad = torch.tensor([g], dtype=torch.float64)
        before = p.item()
        optimizer.step()
        assert before - p.item() == seen
        assert p.grad.item() == g
        assert p.item() == now
        assert optimizer.previous[p].item() == g


@every_optimizer
def test_theta_zero_is_the_inner_optimiser(make: Make) -> None:
    plain, wrapped = network(), network()
    optimizer = HybridGradient(make(wrapped.parameters()), theta=0)
    train(plain, make(plain.parameters()), range(20))
    train(wrapped, optimizer, range(20))
    assert same(plain, wrapped)
    assert not optimizer.previous


@every_optimizer
@pytest.mark.parametrize("start_at_zero", [False, True])
def test_theta_one_is_the_plain_twin_bitwise(make: Make, start_at_zero: bool) -> None:
    plain, wrapped = network(), network()
    train_by_hand(plain, make(plain.parameters()), range(25), 1.0, start_at_zero)
    train(wrapped, HybridGradient(make(wrapped.parameters()), start_at_zero=start_at_zero), range(25))
    assert same(plain, wrapped)
    assert not same(plain, network())


@every_optimizer
def test_other_theta_is_the_plain_twin_up_to_rounding(make: Make) -> None:
    plain, wrapped = network(), network()
    train_by_hand(plain, make(plain.parameters()), range(25), 0.3)
    train(wrapped, HybridGradient(make(wrapped.parameters()), 0.3), range(25))
    torch.testing.assert_close(weights(wrapped), weights(plain), rtol=0, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_theta_equal_to_momentum_is_nesterov(momentum: float) -> None:
    plain, wrapped = network(), network()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.05, momentum=momentum, nesterov=True), range(60))
    inner = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=momentum)
    train(wrapped, HybridGradient(inner, momentum, start_at_zero=True), range(60))
    torch.testing.assert_close(weights(wrapped), weights(plain), rtol=0, atol=1e-12)


def test_first_step_sees_the_gradient_itself_for_any_theta() -> None:
    plain, wrapped = network(), network()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), range(1))
    train(wrapped, HybridGradient(torch.optim.SGD(wrapped.parameters(), lr=0.1), 0.37), range(1))
    assert same(plain, wrapped)


def test_weight_decay_is_not_extrapolated() -> None:
    lr, decay = 0.1, 0.3
    net = network()
    w, q = weights(net), None
    train(net, HybridGradient(torch.optim.SGD(net.parameters(), lr=lr, weight_decay=decay)), range(10))
    twin = network()
    for k in range(10):
        nn.utils.vector_to_parameters(w, twin.parameters())
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss(twin, k), list(twin.parameters()))])
        w = w - lr * (2 * g - (g if q is None else q) + decay * w)
        q = g
    torch.testing.assert_close(weights(net), w, rtol=0, atol=1e-14)


# Gradients: who owns them, which are missing


def test_zeroed_gradients_and_none_gradients_give_the_same_trajectory() -> None:
    one, other = network(), network()
    train(one, HybridGradient(torch.optim.Adam(one.parameters(), lr=0.01)), range(20), set_to_none=True)
    train(other, HybridGradient(torch.optim.Adam(other.parameters(), lr=0.01)), range(20), set_to_none=False)
    assert same(one, other)


def test_one_buffer_and_the_gradients_come_back() -> None:
    net = network()
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1))
    train(net, optimizer, range(1))
    owned = [q.data_ptr() for q in optimizer.previous.values()]
    optimizer.zero_grad()
    torch.autograd.backward(loss(net, 1))
    raw = [p.grad for p in net.parameters()]
    optimizer.step()
    assert [q.data_ptr() for q in optimizer.previous.values()] == owned
    assert all(p.grad is g for p, g in zip(net.parameters(), raw, strict=True))
    assert all(torch.equal(q, torch.as_tensor(g)) for q, g in zip(optimizer.previous.values(), raw, strict=True))


def test_a_parameter_without_gradient_keeps_its_previous_one() -> None:
    p, q = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = HybridGradient(torch.optim.SGD([p, q], lr=1.0))
    for of_p, of_q in [(1.0, 10.0), (2.0, None), (3.0, 20.0)]:
        p.grad = torch.tensor([of_p])
        q.grad = None if of_q is None else torch.tensor([of_q])
        optimizer.step()
    assert p.item() == -(1 + (2 * 2 - 1) + (2 * 3 - 2))
    assert q.item() == -(10 + (2 * 20 - 10))


def test_no_gradients_at_all() -> None:
    net = network()
    HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1)).step()
    assert same(net, network())


def shared_tensor(g: Tensor) -> tuple[Tensor, Tensor]:
    g = g.clone()
    return g, g


def shared_memory(g: Tensor) -> tuple[Tensor, Tensor]:
    flat = torch.cat([g.flatten(), g.flatten()])
    return flat[:4].view(2, 2), flat[4:].view(2, 2)


def whole_views(g: Tensor) -> tuple[Tensor, Tensor]:
    return g.flatten().clone().view(2, 2), g.flatten().clone().view(2, 2)


def with_graph(g: Tensor) -> tuple[Tensor, Tensor]:
    return g.clone().requires_grad_() * 1, g.clone().requires_grad_() * 1


def transposed(g: Tensor) -> tuple[Tensor, Tensor]:
    return g.t().contiguous().t(), g.t().contiguous().t()


@pytest.mark.parametrize("give", [shared_tensor, shared_memory, whole_views, with_graph, transposed])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_that_others_can_write_to_are_copied(
    give: Callable[[Tensor], tuple[Tensor, Tensor]], set_to_none: bool
) -> None:
    p, q = (nn.Parameter(torch.zeros(2, 2, dtype=torch.float64)) for _ in range(2))
    optimizer = HybridGradient(torch.optim.SGD([p, q], lr=1.0))
    expected, previous = torch.zeros_like(p), None
    for k in range(5):
        g = torch.full((2, 2), float(k * k + 1), dtype=torch.float64) + torch.arange(4).view(2, 2)
        optimizer.zero_grad(set_to_none=set_to_none)
        p.grad, q.grad = given = give(g)
        optimizer.step()
        with torch.no_grad():
            for tensor in given:
                tensor.zero_()
        expected, previous = expected - (g if previous is None else 2 * g - previous), g
        assert all(not kept.requires_grad for kept in optimizer.previous.values())
    assert torch.equal(p, expected)
    assert torch.equal(q, expected)


def test_a_slice_of_a_given_gradient_is_copied() -> None:
    p, v = nn.Parameter(torch.zeros(2)), torch.ones(4)
    optimizer = HybridGradient(torch.optim.SGD([p], lr=1.0))
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(torch.cat([p, torch.zeros(2)]), v)
        assert p.grad is not None
        assert p.grad.data_ptr() == v.data_ptr()  # torch lends it without a copy, and does not call it a view
        assert not p.grad._is_view()
        optimizer.step()
    assert v.tolist() == [1.0] * 4
    assert p.tolist() == [-3.0] * 2


def test_expanded_gradients() -> None:
    p = nn.Parameter(torch.zeros(3))
    optimizer = HybridGradient(torch.optim.SGD([p], lr=1.0))
    for g in (1.0, 2.0, 5.0):
        p.grad = torch.tensor(g).expand(3)
        optimizer.step()
    assert p.tolist() == [-(1.0 + 3.0 + 8.0)] * 3


def assign(p: nn.Parameter, g: Tensor) -> None:
    p.grad = g


def lend(p: nn.Parameter, g: Tensor) -> None:
    p.grad = None
    torch.autograd.backward(p.view(3), g)


@pytest.mark.parametrize("give", [assign, lend])
def test_gradient_tensors_stay_the_callers(give: Callable[[nn.Parameter, Tensor], None]) -> None:
    """One buffer filled anew for each step is never written by us, nor taken for the previous gradient."""
    p = nn.Parameter(torch.zeros(3))
    optimizer = HybridGradient(torch.optim.SGD([p], lr=1.0))
    g = torch.empty(3)
    for k, seen in enumerate([1.0, 3.0, 4.0]):
        g.fill_(k + 1)
        give(p, g)
        before = p.detach().clone()
        optimizer.step()
        assert torch.equal(before - p, torch.full((3,), seen))
        assert torch.equal(g, torch.full((3,), k + 1.0))


def test_sparse_gradients_are_refused_before_anything_moves() -> None:
    net = nn.ModuleList([nn.Linear(2, 2), nn.Embedding(4, 2, sparse=True)])
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=1.0))
    (net[0](torch.ones(1, 2)).sum() + net[1](torch.tensor([1, 2])).sum()).backward()
    before = copy.deepcopy(net)
    with pytest.raises(InputError, match=r"parameter 2, of shape \(4, 2\), is sparse.*sparse=False"):
        optimizer.step()
    assert same(net, before)
    assert not optimizer.previous
    HybridGradient(torch.optim.SGD(net.parameters(), lr=1.0), theta=0).step()
    assert not same(net, before)


def test_two_dtypes_and_a_complex_one() -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.float32]
    parameters = [nn.Parameter(torch.zeros(3, dtype=dtype)) for dtype in dtypes]
    optimizer = HybridGradient(torch.optim.SGD(parameters, lr=1.0))
    for g in (1.0, 3.0):
        for p in parameters:
            p.grad = torch.full_like(p, g)
        optimizer.step()
    for p, dtype in zip(parameters, dtypes, strict=True):
        assert torch.equal(p, torch.full((3,), -(1.0 + 5.0), dtype=dtype))
    optimizer.load_state_dict(reload(optimizer.state_dict()))
    assert [q.dtype for q in optimizer.previous.values()] == dtypes


def test_theta_can_be_changed_on_the_way() -> None:
    p = nn.Parameter(torch.zeros(1))
    optimizer = HybridGradient(torch.optim.SGD([p], lr=1.0))
    for theta, g, seen in [(1.0, 1.0, 1.0), (2.0, 2.0, 4.0), (0.0, 3.0, 3.0), (1.0, 7.0, 7.0), (1.0, 8.0, 9.0)]:
        optimizer.theta = theta
        p.grad = torch.tensor([g])
        before = p.item()
        optimizer.step()
        assert before - p.item() == seen  # after theta = 0 it starts afresh


# A real optimiser


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
    with pytest.raises(InputError, match=r"no 'theta', only 'state', 'param_groups'.*load it into `\.inner`"):
        optimizer.load_state_dict(plain.state_dict())
    state = optimizer.state_dict()
    del state["previous_gradients"]
    with pytest.raises(InputError, match="no 'previous_gradients'"):
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
    with pytest.raises(InputError, match=r"parameter 0 has shape \(7, 5\), here is .*\(9, 5\).*same model"):
        other.load_state_dict(state)
    short = HybridGradient(torch.optim.SGD(net[0].parameters(), lr=0.5), 0.5)
    with pytest.raises(InputError, match=r"parameter 2 has shape \(3, 7\), here is no such parameter"):
        short.load_state_dict(state)
    with pytest.raises(InputError, match="theta must be finite"):
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


def test_everything_else_is_asked_of_the_inner_optimiser() -> None:
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


def test_an_optimiser_that_overrides_methods_is_obeyed() -> None:
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


# Refusals


@pytest.mark.parametrize("theta", [-0.1, float("nan"), float("inf")])
def test_theta_must_be_finite_and_not_negative(theta: float) -> None:
    with pytest.raises(InputError, match=rf"theta must be finite and >= 0, got {theta}: 1 is the paper's choice"):
        HybridGradient(torch.optim.SGD(network().parameters(), lr=0.1), theta)


def test_optimisers_that_need_a_closure_are_refused() -> None:
    class Searching(torch.optim.SGD):
        def step(self, closure: Any) -> Any:  # type: ignore[override]
            return super().step(closure)

    with pytest.raises(InputError, match=r"got LBFGS, which needs one to try several points.*torch\.optim\.SGD"):
        HybridGradient(torch.optim.LBFGS(network().parameters()))
    with pytest.raises(InputError, match="got Searching"):
        HybridGradient(Searching(network().parameters(), lr=0.1))


def test_an_optimiser_under_a_scheduler_is_accepted() -> None:
    inner = torch.optim.SGD(network().parameters(), lr=0.1)
    StepLR(inner, 3)
    assert HybridGradient(inner).inner is inner


def test_other_things_are_refused() -> None:
    net = network()
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(InputError, match=r"got a HybridGradient: wrap its `\.inner`"):
        HybridGradient(optimizer)
    with pytest.raises(InputError, match=r"must be a torch optimiser, got list: try torch\.optim\.SGD"):
        HybridGradient(list(net.parameters()))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="differentiable=False, got True"):
        HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1, differentiable=True))


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(sihg.core.hybrid) == (0, 4)


@pytest.mark.parametrize("name", ["momentum", "adam", "fused"])
def test_a_loaded_state_lies_in_memory_as_its_parameters_do(name: str) -> None:
    """Fused kernels run over the memory of p, its gradient and its state side by side, whatever their strides say."""
    fused_sgd: Make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)  # noqa: E731
    make = fused_sgd if name == "fused" else OPTIMIZERS[name]
    torch.manual_seed(0)
    start = nn.Conv2d(3, 4, 3).state_dict()
    ends = []
    for reload in (False, True):
        net = nn.Conv2d(3, 4, 3)
        net.load_state_dict(start)
        net.weight.data = net.weight.data.contiguous(memory_format=torch.channels_last)
        optimizer = HybridGradient(make(net.parameters()))
        for k in range(4):
            if reload and k == 2:
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
