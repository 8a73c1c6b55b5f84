"""Small trained models that attacks break here and there, and checks that tests of attacks share."""

from copy import deepcopy
from functools import cache

import torch
from torch import Tensor, nn

from sihg.parse import ORDERS
from sihg.robust.attacks import Attack
from sihg.robust.data.batches import batches
from sihg.robust.methods import FastAT
from sihg.robust.threat import Bounds
from tests.robust.methods.nets import IMAGE, net, samples

SHAPES = {"smooth": IMAGE, "plain": IMAGE, "bn": IMAGE, "table": (6,)}
FEATURES = {
    "table": (torch.tensor([-0.1, 0, 0, -1, 0, 0]), torch.tensor([1.0, 1, 1.5, 1, 1, 2])),
    "smooth": (torch.zeros(1, 1, 8), torch.linspace(1, 2, 8).view(1, 1, 8)),
}


@cache
def _trained(kind: str) -> nn.Module:
    """A network that attacks break here and there."""
    model = net(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches(samples(120, SHAPES[kind]), size=20, epochs=5):
        FastAT(eps=0.05).step(model, batch, optimizer)
    return model


def trained(kind: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return deepcopy(_trained(kind)).to(dtype)


def mixed(broken: Tensor) -> bool:
    return 0.05 < float(broken.double().mean()) < 0.95


def bounds_of(name: str, kind: str) -> Bounds:
    return {"none": None, "scalars": (0.0, 1.0), "features": FEATURES[kind]}[name]


def assert_inside(attack: Attack, x: Tensor, x_adv: Tensor) -> None:
    order = ORDERS[attack.norm]
    assert float(torch.linalg.vector_norm((x_adv - x).flatten(1), ord=order, dim=1).max()) <= attack.eps + 1e-6
    if attack.bounds is not None:
        low, high = (torch.as_tensor(b, dtype=x.dtype) for b in attack.bounds)
        assert bool((x_adv >= low).all())
        assert bool((x_adv <= high).all())
