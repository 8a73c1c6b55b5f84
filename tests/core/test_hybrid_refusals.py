"""HybridGradient refuses what it cannot wrap."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from sihg.core.hybrid import HybridGradient
from tests.core.networks import network
from tests.refused import refused


@pytest.mark.parametrize("theta", [-0.1, float("nan"), float("inf")])
def test_theta_must_be_finite_and_not_negative(theta: float) -> None:
    with refused("hybrid-theta-range", theta=theta):
        HybridGradient(torch.optim.SGD(network().parameters(), lr=0.1), theta)


def test_optimisers_that_need_a_closure_are_refused() -> None:
    class Searching(torch.optim.SGD):
        def step(self, closure: Any) -> Any:  # type: ignore[override]
            return super().step(closure)

    with refused("optimizer-needs-closure", type="LBFGS"):
        HybridGradient(torch.optim.LBFGS(network().parameters()))
    with refused("optimizer-needs-closure", type="Searching"):
        HybridGradient(Searching(network().parameters(), lr=0.1))


def test_an_optimiser_under_a_scheduler_is_accepted() -> None:
    inner = torch.optim.SGD(network().parameters(), lr=0.1)
    StepLR(inner, 3)
    assert HybridGradient(inner).inner is inner


def test_other_things_are_refused() -> None:
    net = network()
    optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1))
    with refused("optimizer-wrapped-twice"):
        HybridGradient(optimizer)
    with refused("optimizer-type", type="list"):
        HybridGradient(list(net.parameters()))  # type: ignore[arg-type]
    with refused("optimizer-differentiable"):
        HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1, differentiable=True))
