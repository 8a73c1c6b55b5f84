"""A small network, its batches and training loops for tests of HybridGradient."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.core.hybrid import hybrid

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
