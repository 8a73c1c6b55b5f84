"""HybridGradient: who owns the gradients, and which may be missing."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sihg.core.hybrid import HybridGradient
from tests.core.networks import (
    loss,
    network,
    reload,
    same,
    train,
)
from tests.refused import refused


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
    with refused("sparse-gradient", parameter=2, shape=(4, 2)):
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
