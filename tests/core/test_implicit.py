"""The implicit step: both iterations reach the exact point, and their error bounds hold."""

import pytest
import torch
from torch import Tensor

from sihg.core.implicit import Implicit, fista, implicit_step, picard
from sihg.core.prox import Box, Zero

TAU = 0.5


def quadratic(curvature: float, size: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """phi = v'd - d'Hd/2 with eigenvalues of H in [-curvature, curvature], H, v and a centre."""
    draw = torch.Generator().manual_seed(3)
    Q = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))[0]
    H = Q @ torch.diag(torch.linspace(-curvature, curvature, size, dtype=torch.float64)) @ Q.T
    return (
        H,
        torch.randn(size, generator=draw, dtype=torch.float64),
        torch.randn(size, generator=draw, dtype=torch.float64),
    )


@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.79, 0.85, 0.99])
def test_reaches_the_exact_point(q: float) -> None:
    H, v, centre = quadratic(q / TAU)
    exact = torch.linalg.solve(torch.eye(6, dtype=H.dtype) + TAU * H, centre + TAU * v)
    found = implicit_step(lambda d: v - H @ d, Zero().prox, centre, TAU, q / TAU, limit=5000)
    assert found.converged
    torch.testing.assert_close(found.point, exact, rtol=1e-13, atol=1e-12)
    if q == 0:
        assert (found.steps, found.error) == (1, 0.0)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("q", [0.3, 0.7, 0.9])
def test_error_bounds_hold(q: float, limit: int) -> None:
    H, v, centre = quadratic(q / TAU)
    box = Box(-0.6, 0.6)
    exact = implicit_step(lambda d: v - H @ d, box.prox, centre, TAU, q / TAU, limit=5000).point

    def error_of(found: Implicit) -> float:
        return float((found.point - exact).norm())

    by_fista = fista(lambda d: v - H @ d, box.prox, centre, TAU, q / TAU, tolerance=0, limit=limit)
    assert error_of(by_fista) <= by_fista.error * (1 + 1e-12)
    by_picard, _ = picard(lambda d: v - H @ d, box.prox, centre, TAU, q / TAU, tolerance=0, limit=limit)
    assert error_of(by_picard) <= by_picard.error * (1 + 1e-12) + 1e-15
    assert not by_fista.converged


def test_fista_continues_if_the_curvature_is_underestimated() -> None:
    """With a fifth of the curvature, Picard does not contract; FISTA continues and converges."""
    true = 1.5 / TAU  # tau L22 = 1.5, yet -phi is convex, so the step is well posed
    H = torch.diag(torch.linspace(0.1, true, 6, dtype=torch.float64))
    v, centre = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    exact = torch.linalg.solve(torch.eye(6, dtype=H.dtype) + TAU * H, centre + TAU * v)
    found = implicit_step(lambda d: v - H @ d, Zero().prox, centre, TAU, true / 5, limit=5000)
    assert found.converged
    torch.testing.assert_close(found.point, exact, rtol=0, atol=1e-9)


def test_float32_stops_at_its_own_precision() -> None:
    H, v, centre = (t.float() for t in quadratic(0.5 / TAU))
    found = implicit_step(lambda d: v - H @ d, Zero().prox, centre, TAU, 0.5 / TAU)
    assert found.converged
    assert found.steps < 40


def test_too_few_steps_are_reported() -> None:
    H, v, centre = quadratic(0.7 / TAU)
    assert not implicit_step(lambda d: v - H @ d, Zero().prox, centre, TAU, 0.7 / TAU, limit=3).converged


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_the_bound_of_picard_is_met_in_the_worst_case(limit: int) -> None:
    """With grad phi(d) = (q / tau) d each step is q times the one before, and the bound is the distance."""
    q, centre = 0.6, torch.tensor([2.0], dtype=torch.float64)
    found, _ = picard(lambda d: q / TAU * d, Zero().prox, centre, TAU, q / TAU, tolerance=0, limit=limit)
    exact = 2.0 / (1 - q)
    assert found.error == pytest.approx(exact - found.point.item(), rel=1e-12)


@pytest.mark.parametrize("q", [0.6, 0.9, 0.99])
def test_the_bound_of_fista_in_the_worst_case(q: float) -> None:
    """With the same phi, a step of length l ends (1/(s m) - 1) l from the solution; the bound is 2 l / (s m)."""
    centre = torch.tensor([2.0], dtype=torch.float64)
    found = fista(lambda d: q / TAU * d, Zero().prox, centre, TAU, q / TAU, tolerance=0, limit=1)
    distance, sm = 2.0 / (1 - q) - found.point.item(), (1 - q) / (1 + q)
    assert found.error == pytest.approx(2 * distance / (1 - sm), rel=1e-12)
    assert found.error > 2 * distance
