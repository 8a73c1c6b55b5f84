"""The step-size rules against the figures and formulas they come from."""

from math import inf, sqrt

import numpy as np
import pytest

from sihg.minimax import Constants
from sihg.minimax import step_sizes as steps
from tests.refused import refused


@pytest.mark.parametrize(
    ("n", "general", "simplified"), [(1, 0.063, 0.0208), (10, 0.0198, 0.0027), (100, 0.0063, 0.00028)]
)
def test_largest_rho(n: int, general: float, simplified: float) -> None:
    rho, sigma, tau = steps.largest_rho(L11=0, L12=1, n=n)
    assert rho == pytest.approx(general, rel=0.01)
    assert steps.largest_rho_simplified(L=1, n=n)[0] == pytest.approx(simplified, rel=0.02)
    assert steps.weak_mvi(sigma, tau, L11=0, L12=1, n=n, rho=0.999 * rho)
    assert not steps.weak_mvi(sigma, tau, L11=0, L12=1, n=n, rho=1.001 * rho)


def test_largest_rho_beats_a_fine_grid() -> None:
    L11, L12, n = 0.4, 1.3, 3
    best = steps.largest_rho(L11=L11, L12=L12, n=n)[0]
    sigma, tau = np.meshgrid(np.geomspace(1e-3, 1, 400), np.geomspace(1e-3, 1, 400))
    k = np.maximum(L12 * np.sqrt(sigma * tau * n), L11 * sigma)
    on_grid = np.minimum((1 / 3 - k) / (1 / sigma + 4 * L11**2 * sigma), (1 - k) / (1 / tau + 12 * n * L12**2 * tau))
    assert on_grid.max() <= best <= on_grid.max() * 1.01


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_scaling_phi_scales_the_steps(scale: float) -> None:
    rho, sigma, tau = steps.largest_rho(L11=0.2, L12=1, n=4)
    scaled = steps.largest_rho(L11=0.2 * scale, L12=scale, n=4)
    np.testing.assert_allclose(scaled, np.array([rho, sigma, tau]) / scale, rtol=1e-3)


def test_general_condition_by_hand() -> None:
    L11, L12, n, rho, sigma, tau = 0.1, 1.0, 2, 0.01, 0.3, 0.05
    kappa = max(L12 * sqrt(sigma * tau * n), L11 * sigma)
    right = min(1 / 3 - rho * (1 / sigma + 4 * L11**2 * sigma), 1 - rho * (1 / tau + 12 * n * L12**2 * tau))
    condition = steps.weak_mvi(sigma, tau, L11=L11, L12=L12, n=n, rho=rho)
    assert bool(condition) == (kappa < right)
    assert f"{kappa:.4g}" in condition.text
    assert f"{right:.4g}" in condition.text
    assert not steps.weak_mvi(sigma, tau, theta=0.9, L11=L11, L12=L12, n=n, rho=rho)


@pytest.mark.parametrize("n", [1, 3])
def test_simplified_implies_general(n: int) -> None:
    for L, rho in ((1.0, 0.002), (3.0, 0.0005)):
        sigma, tau = 1 / (6 * L), 1 / (6 * n * L)
        assert steps.weak_mvi_simplified(sigma, tau, L=L, n=n, rho=rho)
        assert steps.weak_mvi(sigma, tau, L11=L, L12=L, n=n, rho=rho)
        assert not steps.weak_mvi_simplified(1.01 * sigma, tau, L=L, n=n, rho=rho)
        sigma, tau = 1 / (3 * L), 1 / (3 * n * L)
        theta = steps.contraction(sigma, tau, mu=0.1, n=n)
        assert steps.strong_mvi_simplified(sigma, tau, theta, L=L, n=n, mu=0.1)
        assert steps.strong_mvi(sigma, tau, theta, L11=L, L12=L, n=n, mu=0.1)
        assert not steps.strong_mvi(1.01 * sigma, tau, theta, L11=L, L12=L, n=n, mu=0.1)
        assert not steps.strong_mvi(sigma, tau, 0.99 * theta, L11=L, L12=L, n=n, mu=0.1)


@pytest.mark.parametrize(
    ("L11", "L12", "L22", "n", "mu"), [(0, 1, 0, 1, 0.1), (2, 1, 5, 4, 0.3), (0, 1e-3, 0, 20, 1e-4)]
)
def test_best_strong_beats_a_fine_grid(L11: float, L12: float, L22: float, n: int, mu: float) -> None:
    best = steps.best_strong(L11=L11, L12=L12, L22=L22, n=n, mu=mu)
    assert steps.strong_mvi(best.sigma, best.tau, best.theta, L11=L11, L12=L12, n=n, mu=mu)
    assert best.tau * L22 < 1
    for sigma in np.geomspace(best.sigma / 100, best.sigma * 100, 301):
        if L11 * sigma > 1 / 3:
            continue
        tau = min(1 / (9 * n * L12**2 * sigma), 0.999 / L22 if L22 else inf)
        assert steps.contraction(sigma, tau, mu=mu, n=n) >= best.theta - 1e-3 * (1 - best.theta)


def test_best_weak_minimises_the_bound() -> None:
    c = {"L11": 0.3, "L12": 1.0, "n": 4, "rho": 0.01}
    best = steps.best_weak(**c, L22=0.5)  # type: ignore[arg-type]
    assert steps.weak_mvi(best.sigma, best.tau, **c)  # type: ignore[arg-type]

    def bound(sigma: float, tau: float) -> float:
        return steps.bound_factor(sigma, tau, **c) * (1 / sigma + 4 / tau)  # type: ignore[arg-type]

    for factor in (0.8, 0.95, 1.05, 1.2):
        assert bound(best.sigma * factor, best.tau) >= bound(best.sigma, best.tau) * (1 - 1e-9)
        assert bound(best.sigma, best.tau * factor) >= bound(best.sigma, best.tau) * (1 - 1e-9)


def test_rho_too_large_falls_back_to_the_largest() -> None:
    best = steps.best_weak(L11=0, L12=1, rho=1.0)
    assert "largest rho" in best.source
    assert (best.sigma, best.tau) == steps.largest_rho(L11=0, L12=1)[1:]


def test_steps_of_a_problem_use_its_block_constant() -> None:
    c = Constants(L11=0.1, L12=2.0, L12_block=1.0, L22=0.1, rho=0.001)
    assert (
        steps.hybrid_steps(c, 4, is_bilinear=False).tau
        > steps.hybrid_steps(Constants(L11=0.1, L12=2.0, L22=0.1, rho=0.001), 4, is_bilinear=False).tau
    )


def test_decoupled_or_unknown_is_an_error() -> None:
    with refused("not-coupled", value=0):
        steps.largest_rho(L11=1, L12=0)
    with refused("lipschitz-unknown"):
        steps.hybrid_steps(Constants(L12=1.0), 1, is_bilinear=False)
    with refused("constant-range", name="L12", value=-1):
        Constants(L12=-1)
