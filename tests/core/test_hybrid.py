"""The hybrid gradient is the formula, whatever optimiser steps along it."""

import pytest
import torch
from torch import nn

from sihg.core.hybrid import HybridGradient, hybrid
from tests.core.networks import Make, every_optimizer, loss, network, same, train, train_by_hand, weights


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
