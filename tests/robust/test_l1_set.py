"""The L1 ball within bounds: its projection against bisection, quadratic programs and a peer; steps; noise."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

from sihg.robust.threat import Ball, Bounds, L1Set, extreme_noise, surface_noise, uniform_noise
from tests.robust.l1_twins import Array, plain_projection

BOUNDS: dict[str, Bounds] = {"none": None, "unit": (0.0, 1.0), "open": (-math.inf, 1.0)}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int, d: int, scale: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Samples in [0, 1], some of them on the bounds, and perturbations with zeros and ties."""
    x = torch.rand(n, d, generator=seeded(seed), dtype=torch.float64)
    x = torch.where(torch.rand(n, d, generator=seeded(seed + 1)) < 0.3, x.round(), x)
    delta = scale * torch.randn(n, d, generator=seeded(seed + 2), dtype=torch.float64)
    delta[::3, ::2] = 0
    delta[::4] = delta[::4].sign() * scale  # ties
    return x, delta


def limits(bounds: Bounds, x: Array) -> tuple[Array, Array]:
    low, high = bounds or (-math.inf, math.inf)
    return float(low) - x, float(high) - x


@pytest.mark.parametrize("bounds", list(BOUNDS))
@pytest.mark.parametrize("d", [1, 2, 7, 300])
@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0, 5.0])
def test_the_projection_is_that_of_bisection(eps: float, d: int, bounds: str) -> None:
    for scale in (1e-3, 0.3, 40.0):
        x, delta = points(12, d, scale, seed=d)
        found = Ball(eps, "l1", BOUNDS[bounds]).around(x).project_(delta.clone())
        for row, far, near in zip(x.numpy(), delta.numpy(), found.numpy(), strict=True):
            np.testing.assert_allclose(near, plain_projection(far, *limits(BOUNDS[bounds], row), eps), 0, 1e-11)


def test_the_projection_is_optimal_and_stays() -> None:
    """The first-order condition: no vertex of the set lies further along the way to the point; projected, it stays."""
    x, delta = points(60, 20, 0.5)
    feasible = Ball(1.5, "l1").around(x)
    found = feasible.project_(delta.clone())
    assert int((found.abs().sum(1) > 1.5 - 1e-9).sum()) > 20
    assert float(found.abs().sum(1).max()) <= 1.5 + 1e-12
    torch.testing.assert_close(feasible.project_(found.clone()), found, rtol=0, atol=1e-12)
    pull = delta - found
    for row in range(len(x)):
        low, high = limits((0.0, 1.0), x[row].numpy())
        best = furthest(pull[row].numpy(), low, high, 1.5)
        assert float(pull[row] @ found[row]) >= best - 1e-9


def furthest(g: Array, low: Array, high: Array, eps: float) -> float:
    """Return the maximum of <g, d> over the set, by linear programming in the parts above and below zero."""
    d = len(g)
    sides = [*zip(np.zeros(d), np.maximum(high, 0), strict=True), *zip(np.zeros(d), np.maximum(-low, 0), strict=True)]
    best = linprog(np.concatenate((-g, g)), np.ones((1, 2 * d)), [eps], bounds=sides)
    assert best.status == 0
    return -float(best.fun)


def test_the_projection_is_that_of_a_quadratic_program() -> None:
    x, delta = points(8, 4, 0.8, seed=3)
    found = Ball(0.7, "l1").around(x).project_(delta.clone())
    for row in range(len(x)):
        low, high = limits((0.0, 1.0), x[row].numpy())
        sides = [*((0, max(0.0, h)) for h in high), *((0, max(0.0, -low_)) for low_ in low)]
        far = delta[row].numpy()
        ball = {"type": "ineq", "fun": lambda z: 0.7 - z.sum()}
        best = minimize(
            lambda z, far=far: ((z[:4] - z[4:] - far) ** 2).sum(),
            np.full(8, 0.01),
            bounds=sides,
            constraints=ball,
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(found[row].numpy(), best.x[:4] - best.x[4:], 0, 1e-5)


@pytest.mark.parametrize("shape", [(3072,), (3, 32, 32)])
def test_rounding_in_float32_stays_within_the_ball(shape: tuple[int, ...]) -> None:
    x = torch.rand(20, *shape, generator=seeded(0))
    for scale in (1e-4, 0.1, 10.0, 1e4):
        delta = Ball(12.0, "l1").around(x).project_(torch.randn(x.shape, generator=seeded(1)) * scale)
        assert float(delta.double().abs().flatten(1).sum(1).max()) <= 12.0 * (1 + 1e-6)
        assert float((x + delta).min()) >= 0
        assert float((x + delta).max()) <= 1


@pytest.mark.parametrize("length", [0.05, 0.6, 2.0, 50.0])
def test_a_step_is_the_steepest_of_its_length_within_the_bounds(length: float) -> None:
    x, _ = points(10, 12, 1.0)
    feasible = Ball(100.0, "l1", (0.0, 1.0)).around(x)
    g = torch.randn(10, 12, generator=seeded(5), dtype=torch.float64)
    g[::3, ::4] = 0
    delta = feasible.climb_(torch.zeros_like(x), g.clone(), length)
    for row in range(10):
        low, high = limits((0.0, 1.0), x[row].numpy())
        best = furthest(g[row].numpy(), low, high, length)
        assert float(g[row] @ delta[row]) == pytest.approx(best, abs=1e-10)
        assert float(delta[row].abs().sum()) <= length + 1e-12


def test_steps_of_other_lengths_per_row_and_without_bounds() -> None:
    g = torch.tensor([[1.0, -5.0, 2.0], [0.0, 0.0, -1e-30]], dtype=torch.float64)
    feasible = Ball(9.0, "l1", None).around(torch.zeros(2, 3, dtype=torch.float64))
    steps = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    assert feasible.climb_(torch.zeros_like(g), g.clone(), steps).tolist() == [[0, -0.5, 0], [0, 0, -2]]


@pytest.mark.parametrize("d", [1, 2, 6])
def test_noise_is_uniform_in_the_ball(d: int) -> None:
    """Then (length / radius)^d is uniform in [0, 1], as are the shares of a simplex, and no sign is preferred."""
    noise = uniform_noise("l1", (4000, d), 0.5, seeded(0), torch.float64)
    steps = torch.linspace(0, 1, 4000, dtype=torch.float64)
    lengths = noise.abs().sum(1)
    assert ((lengths / 0.5).pow(d).sort().values - steps).abs().max() < 0.03
    assert noise.mean(0).abs().max() < 0.03
    if d > 1:
        rest = 1 - (1 - noise[:, 0].abs() / lengths).pow(d - 1)
        assert (rest.sort().values - steps).abs().max() < 0.03


def test_noise_on_the_surface_and_at_corners() -> None:
    surface = surface_noise("l1", (50, 7), 0.4, seeded(0), torch.float64)
    torch.testing.assert_close(surface.abs().sum(1), torch.full((50,), 0.4, dtype=torch.float64))
    x = torch.full((200, 9), 0.5, dtype=torch.float64)
    far = extreme_noise("l1", (200, 9), 1.25, seeded(0), torch.float64)
    corners = Ball(1.25, "l1").around(x).project_(far.clone())
    moved = corners.abs().sort(dim=1, descending=True).values
    full = (moved[:, :2] == 0.5).all(1) & (moved[:, 2] - 0.25).abs().lt(1e-9) & (moved[:, 3:] == 0).all(1)
    assert float(full.double().mean()) > 0.9  # two entries at their bounds, what is left in a third
    single = Ball(1.25, "l1", None).around(x).project_(far.clone())
    assert float((single.abs().amax(1) == 1.25).double().mean()) > 0.9


def test_a_wider_set_has_the_same_bounds() -> None:
    x, delta = points(20, 6, 2.0)
    feasible = Ball(0.4, "l1").around(x)
    assert isinstance(feasible, L1Set)
    wide = feasible.widened(3.0).project_(delta.clone())
    torch.testing.assert_close(wide, Ball(3 * 0.4, "l1").around(x).project_(delta.clone()))


@pytest.mark.peer
@pytest.mark.parametrize("scale", [0.01, 0.3, 5.0])
def test_the_projection_of_pyautoattack(scale: float) -> None:
    """It computes in float32."""
    peer = pytest.importorskip("pyautoattack.autopgd_base", reason="pyautoattack is not installed (`make env` does it)")
    x, delta = (part.float() for part in points(60, 100, scale))
    theirs = delta + peer.L1_projection(x, delta, 3.0)
    ours = Ball(3.0, "l1").around(x).project_(delta.clone())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-6 * max(1.0, scale))
