"""Small networks, samples and counters for the tests of attacks and methods."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from sihg.robust.data.batches import Batch, batches
from sihg.robust.methods import Log
from sihg.robust.models import build

IMAGE = (1, 8, 8)
CLASSES = 4


def samples(
    n: int, shape: tuple[int, ...] = IMAGE, *, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Noisy copies of one random pattern a class, in [0, 1]."""
    draw = torch.Generator().manual_seed(seed)
    patterns = torch.rand(CLASSES, *shape, generator=draw, dtype=torch.float64)
    y = torch.randint(CLASSES, (n,), generator=draw)
    x = 0.6 * patterns[y] + 0.4 * torch.rand(n, *shape, generator=draw, dtype=torch.float64)
    return x.to(dtype), y


def net(kind: str, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """`plain`: small-cnn. `bn`: with batch normalisation. `smooth`: tanh. `table`: for samples of 6 numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if kind == "plain":
            model = build("small-cnn", IMAGE, CLASSES, width=0.25, seed=seed)
        elif kind == "bn":
            model = _split(
                nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()),
                nn.Sequential(
                    nn.Conv2d(4, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES)
                ),
            )
        elif kind == "smooth":
            body = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, CLASSES))
            model = _split(nn.Sequential(nn.Conv2d(1, 2, 3, 2, 1), nn.Tanh()), body)
        else:
            model = _split(nn.Sequential(nn.Linear(6, 12), nn.Softplus()), nn.Linear(12, CLASSES))
    return model.to(dtype)


def _split(stem: nn.Module, body: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(stem=stem, body=body))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradients(model: nn.Module) -> Tensor:
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )


def one_batch(n: int = 12, shape: tuple[int, ...] = IMAGE, **more: Any) -> Batch:
    return next(batches(samples(n, shape, **more), size=n))


def start_noise(batch: Batch, eps: float, norm: str = "linf") -> Tensor:
    """Uniform noise from the ball of radius eps, without bounds: each sample's own numbers, scaled by hand."""
    if norm == "linf":
        return (2 * batch.uniform("start") - 1) * eps
    if norm == "l1":  # exponential sizes, divided by their sum and one more
        rows = []
        for u, v in zip(batch.uniform("length", (1,)), 2 * batch.uniform("start") - 1, strict=True):
            sizes = -(1 - v.abs()).log()
            rows.append(eps * v.sign() * sizes / (sizes.sum() - (1 - u).log()))
        return torch.stack(rows)
    rows = [
        eps * float(u) ** (1 / normal.numel()) * normal / normal.norm()
        for u, normal in zip(batch.uniform("length", (1,)), batch.normal("start"), strict=True)
    ]
    return torch.stack(rows)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def gradient_after(method: Any, model: nn.Module, batch: Batch) -> tuple[Tensor, Log]:
    """The gradient that a step of the method hands to its optimiser, which leaves the weights of a copy alone."""
    model = deepcopy(model)
    log = method.step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
    return gradients(model), log


class Points:
    """Keeps every input of a module and whether gradients were on."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.recorded: list[bool] = []

    @property
    def rows(self) -> list[int]:
        return [len(x) for x in self.inputs]

    def rows_with_gradient(self) -> int:
        return sum(len(x) for x, on in zip(self.inputs, self.recorded, strict=True) if on)


@contextmanager
def watched(module: nn.Module) -> Iterator[Points]:
    points = Points()

    def keep(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        points.inputs.append(inputs[0].detach().clone())
        points.recorded.append(torch.is_grad_enabled())

    hook = module.register_forward_pre_hook(keep)
    try:
        yield points
    finally:
        hook.remove()
