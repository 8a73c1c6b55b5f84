"""A healthy small network, and what may be planted before or behind it."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from sihg.robust import data
from sihg.robust.data.samples import Samples
from sihg.robust.evaluation import Evaluation
from sihg.robust.training.fit import fit

EPS = 0.05
Change = Callable[[Tensor], Tensor]


@cache
def healthy() -> nn.Module:
    """A small network trained against PGD."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    fit(model, data.load("digits")[0], method="pgd", eps=EPS, epochs=10, steps=5, validation=0)
    return model.eval().requires_grad_(requires_grad=False)


@cache
def digits() -> Samples:
    return data.load("digits")[1]


class Planted(nn.Module):
    """The healthy network with something before or behind it."""

    def __init__(self, before: Change = lambda x: x, behind: Change = lambda logits: logits) -> None:
        super().__init__()
        self.net, self.before, self.behind = healthy(), before, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.net(self.before(x)))


def quantised(x: Tensor) -> Tensor:
    return (255 * x).round() / 255


def reversed_gradient(x: Tensor) -> Tensor:
    """The same values; a step up is a step down."""
    return 2 * x.detach() - x


def tripped(found: Evaluation) -> dict[str, str]:
    return {one.name: one.message for one in (*found.errors, *found.warnings)}


class Quantise(nn.Module):
    """Round pixels to 16 levels: a defence without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return (15 * x).round() / 15


class Defended(nn.Module):
    """The healthy network behind a defence."""

    def __init__(self, defence: nn.Module) -> None:
        super().__init__()
        self.defence, self.net = defence, healthy()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(self.defence(x))
        return logits


class Ripple(nn.Module):
    """Add a fine wave of random phase: a defence whose gradient is right only in the mean over draws."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.02 * torch.sin(300 * x + 2 * torch.pi * torch.rand_like(x))
