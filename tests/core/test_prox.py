"""The equations of sihg.core.prox, each against a plain description of the function solved by SciPy."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from sihg.core.prox import (
    L1,
    Box,
    Convex,
    L2Ball,
    LinfBall,
    NonNegative,
    SquaredL2,
    Zero,
)
from tests.core.convex_cases import (
    INF,
    Array,
    C,
    D,
    Plain,
    functions,
    grid,
    quickly,
    steps,
    table,
    tensor,
    vectors,
)


def points(seed: int) -> tuple[Array, Array, float]:
    rng = np.random.default_rng(seed)
    return 2 * rng.standard_normal(D), 2 * rng.standard_normal(D), float(rng.uniform(0.2, 3.0))


@table
@pytest.mark.parametrize("seed", range(4))
def test_prox_is_the_minimiser_scipy_finds(h: Convex, plain: Plain, seed: int) -> None:
    z, _, eta = points(seed)
    p = h.prox(tensor(z), eta).numpy()
    np.testing.assert_allclose(p, plain.prox(z, eta), atol=2e-6)


@table
@pytest.mark.parametrize("seed", range(8))
def test_distance_is_the_least_squares_residual_over_the_generators(h: Convex, plain: Plain, seed: int) -> None:
    z, v, eta = points(seed)
    u = h.prox(tensor(z), eta)
    np.testing.assert_allclose(h.distance(u, tensor(v)).item(), plain.distance(u.numpy(), v), atol=1e-9)


@table
@pytest.mark.parametrize("seed", range(4))
def test_value_is_the_plain_formula(h: Convex, plain: Plain, seed: int) -> None:
    z, _, eta = points(seed)
    for u in (tensor(z), h.prox(tensor(z), eta)):
        np.testing.assert_allclose(h.value(u).item(), plain.value(u.numpy()), rtol=1e-12)


@functions
@quickly
@given(z=vectors, eta=steps)
def test_prox_certificate_lies_in_the_subdifferential(h: Convex, z: Tensor, eta: float) -> None:
    p = h.prox(z, eta)
    scale = 1 + z.abs().max().item() / eta
    assert h.value(p).isfinite()
    assert h.distance(p, (z - p) / eta).item() <= 1e-9 * scale


@functions
@quickly
@given(x=vectors, y=vectors, eta=steps)
def test_prox_is_firmly_nonexpansive(h: Convex, x: Tensor, y: Tensor, eta: float) -> None:
    d = h.prox(x, eta) - h.prox(y, eta)
    assert d @ d <= d @ (x - y) + 1e-12


@functions
@quickly
@given(x=vectors, y=vectors, v=vectors, eta=steps)
def test_distance_is_at_least_what_the_subgradient_inequality_demands(
    h: Convex, x: Tensor, y: Tensor, v: Tensor, eta: float
) -> None:
    """Every g in dh(p) has <g, q - p> <= h(q) - h(p), so ||v - g|| ||q - p|| >= <v, q - p> - h(q) + h(p)."""
    p, q = h.prox(x, eta), h.prox(y, eta)
    d = q - p
    assume(d.norm() > 1e-3 or not h.distance(p, v))
    gap = h.value(q) - h.value(p)
    assert h.distance(p, v) * d.norm() >= v @ d - gap - 1e-9
    # The certificate pushed off the subdifferential: by construction at least ||d|| away.
    if d.norm() > 1e-3:
        g = (x - p) / eta
        pushed = g + d * (1 + (gap - g @ d) / (d @ d))
        assert h.distance(p, pushed) >= d.norm() * (1 - 1e-6)


def block_soft(z: Tensor, eta: float) -> Tensor:
    """The prox of 1.3 ||u||_2, the conjugate of the indicator of L2Ball(1.3)."""
    return torch.mul(z, max(0.0, 1 - 1.3 * eta / max(math.hypot(*z.tolist()), 1e-300)))


CONJUGATES: dict[str, tuple[Convex, Callable[[Tensor, float], Tensor]]] = {
    "zero, point": (Zero(), Box(0.0, 0.0).prox),
    "point, zero": (LinfBall(0.0), Zero().prox),
    "l1, linf": (L1(0.7), LinfBall(0.7).prox),
    "linf, l1": (LinfBall(0.7), L1(0.7).prox),
    "l2, norm": (L2Ball(1.3), block_soft),
    "nonnegative, nonpositive": (NonNegative(), Box(-INF, 0.0).prox),
    "squared, squared": (SquaredL2(0.4, tensor(C)), SquaredL2(2.5, -0.4 * tensor(C)).prox),
    # (a h)* = a h*(. / a): the same ball a times as large; h(. - s)* = h* + <s, .>: the prox at z - eta s.
    "scaled l1, linf": (L1(0.7).scaled(2.0), LinfBall(1.4).prox),
    "translated l1, linf": (L1(0.7).translated(tensor(C)), lambda z, eta: LinfBall(0.7).prox(z - eta * tensor(C), eta)),
}


@pytest.mark.parametrize(("h", "conjugate"), CONJUGATES.values(), ids=CONJUGATES.keys())
@quickly
@given(z=vectors, eta=steps)
def test_moreau_identity(h: Convex, conjugate: Callable[[Tensor, float], Tensor], z: Tensor, eta: float) -> None:
    torch.testing.assert_close(h.prox(z, eta) + eta * conjugate(z / eta, 1 / eta), z, rtol=1e-12, atol=1e-12)


@functions
@quickly
@given(
    z=grid, v=vectors, eta=steps, factor=st.floats(0.1, 10.0), shift=st.one_of(grid, grid.map(lambda x: x[0].item()))
)
def test_scaled_and_translated(
    h: Convex, z: Tensor, v: Tensor, eta: float, factor: float, shift: Tensor | float
) -> None:
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    scaled, moved = h.scaled(factor), h.translated(shift)
    p = h.prox(z, eta)
    close(scaled.prox(z, eta), h.prox(z, factor * eta))
    close(scaled.value(p), factor * h.value(p))
    close(scaled.distance(p, factor * v), factor * h.distance(p, v))
    close(moved.prox(z + shift, eta), p + shift)
    # A translation cannot see how far p is from a face or a kink by less than its rounding; the grid avoids that.
    assume(((p == 0) | (p.abs() > 1e-9)).all())
    u = p + shift
    close(moved.value(u), h.value(p))
    close(moved.distance(u, v), h.distance(p, v))
