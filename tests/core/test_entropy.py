"""The entropy of a coin: its prox, its conjugate and its subdifferential."""

import math

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn.functional import softplus

from sihg.core.entropy import BinaryEntropy
from tests.core.convex_cases import quickly, steps, tensor, vectors
from tests.refused import refused

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def bisection(c: float, z: Tensor) -> Tensor:
    """The u of c logit(u) + u = z, from a bracket of logit(u) that is halved until it cannot be."""
    low, high = (z - 0.5).clamp(max=0) / c - 1, (z - 0.5).clamp(min=0) / c + 1
    for _ in range(200):
        middle = (low + high) / 2
        below = c * middle + torch.sigmoid(middle) < z
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.sigmoid(low)


@DTYPES
@pytest.mark.parametrize("exponent", [*range(-7, 5), math.log10(0.66)])  # from 0.65 on fewer steps are made
def test_prox_solves_its_equation_for_every_z(exponent: float, dtype: torch.dtype) -> None:
    eps, c = torch.finfo(dtype).eps, 10.0**exponent
    inner = torch.linspace(0, 1, 2001, dtype=dtype)
    outer = torch.logspace(-9, 3, 1000, dtype=dtype)
    for z in (inner, 1 + outer, -outer):
        for weight, eta in ((1.0, c), (c / 4, 4.0)):
            u = BinaryEntropy(weight).prox(z, eta)
            assert u.dtype == dtype
            assert float((u.double() - bisection(c, z.double())).abs().max()) <= 4 * eps


@quickly
@given(z=vectors, eta=steps)
def test_prox_certificate_lies_in_the_subdifferential(z: Tensor, eta: float) -> None:
    h = BinaryEntropy(0.7)
    u = h.prox(z, eta)
    assert h.value(u).isfinite()
    assert h.distance(u, (z - u) / eta).item() <= 1e-9 * (1 + z.abs().max().item() / eta)


@quickly
@given(z=vectors, eta=steps)
def test_conjugate_is_the_logistic_loss(z: Tensor, eta: float) -> None:
    """h*(z) = sum log(1 + e^z): Fenchel's inequality everywhere, equality at u = sigmoid(z)."""
    h, loss = BinaryEntropy(), float(softplus(z).sum())
    u = torch.sigmoid(z)
    assert math.isclose(float(z @ u - h.value(u)), loss, rel_tol=1e-12)
    other = h.prox(z, eta)
    assert float(z @ other - h.value(other)) <= loss + 1e-12


def test_distance_and_value_at_and_outside_the_ends() -> None:
    h = BinaryEntropy(2.0)
    assert h.value(tensor([0.0, 1.0, 0.5, 0.5])).item() == pytest.approx(-4 * math.log(2))
    assert h.value(tensor([0.5, 1.5])).isinf()
    assert h.distance(tensor([-0.5]), tensor([0.0])).isinf()
    assert h.distance(tensor([0.5, 0.5]), tensor([3.0, 4.0])).item() == pytest.approx(5.0)
    # The slope at 0 is -inf, at the smallest numbers hundreds below 0: only v there is near.
    assert h.distance(tensor([0.0]), tensor([-2000.0])) == 0
    assert h.distance(tensor([0.0]), tensor([0.0])) > 1000


@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_is_a_loop_over_blocks(batch: int) -> None:
    h, z = BinaryEntropy(0.3), torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u = h.prox(z, 0.5, batch=batch)
    torch.testing.assert_close(u[1, 2], h.prox(z[1, 2], 0.5), rtol=0, atol=0)
    assert h.value(u, batch=batch).shape == h.distance(u, z, batch=batch).shape == z.shape[:batch]
    torch.testing.assert_close(h.value(u, batch=batch)[1], h.value(u[1], batch=batch - 1))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with refused("convex-parameter-range", name="weight", function="BinaryEntropy", value=weight):
        BinaryEntropy(weight)


def test_nan_as_a_weight_is_refused() -> None:
    with refused("convex-parameter-range", name="weight", function="BinaryEntropy"):
        BinaryEntropy(math.nan)
