"""The constants in Theorems 1 and 2 and Corollaries 3 and 4, at examples computed by hand from the paper."""

from typing import Any

import pytest

from sihg.minimax import Constants
from sihg.minimax import step_sizes as steps

CLOSE = 1e-9  # relative: a threshold is met from below and missed from above

# sigma, tau, L11, L12, n, and the largest rho that max{L12 sqrt(sigma tau n), L11 sigma} < min{1/3 - rho (1/sigma +
# 4 L11^2 sigma), 1 - rho (1/tau + 12 n L12^2 tau)} admits.
GENERAL = {
    "Theorem 1, w": (0.1, 0.1, 2.0, 1.0, 4, 1 / 87),  # (1/3 - 0.2) / (10 + 1.6)
    "Theorem 1, delta": (0.25, 0.01, 0.0, 1.0, 4, 0.9 / 100.48),  # (1 - 0.1) / (100 + 0.48)
    "Corollary 3, w": (0.1, 0.1, 2.0, 1.0, 1, 1 / 87),
    "Corollary 3, delta": (0.25, 0.04, 0.0, 1.0, 1, 0.9 / 25.48),  # (1 - 0.1) / (25 + 0.48)
}


@pytest.mark.parametrize(("sigma", "tau", "L11", "L12", "n", "rho"), GENERAL.values(), ids=GENERAL.keys())
def test_general_condition_of_theorem_1_and_corollary_3(
    sigma: float, tau: float, L11: float, L12: float, n: int, rho: float
) -> None:
    constants: dict[str, Any] = {"L11": L11, "L12": L12, "n": n}
    assert steps.weak_mvi(sigma, tau, **constants, rho=rho * (1 - CLOSE))
    outside = steps.weak_mvi(sigma, tau, **constants, rho=rho * (1 + CLOSE))
    assert not outside
    assert f"rho < {rho:.4g}," in outside.text
    assert steps.bound_factor(sigma, tau, **constants, rho=rho * (1 + CLOSE)) == float("inf")
    assert steps.bound_factor(sigma, tau, **constants, rho=rho * (1 - CLOSE)) < float("inf")


@pytest.mark.parametrize(
    ("L", "n", "sigma", "tau", "rho"),
    [
        (2.0, 3, 1 / 12, 1 / 36, 1 / 240),  # delta: 6 (36 + 12 * 3 * 4 / 36) = 240
        (2.0, 3, 1 / 120, 1 / 36, 1 / 720.8),  # w: 6 (120 + 4 * 4 / 120) = 720.8
        (1.0, 1, 1 / 6, 1 / 6, 1 / 48),  # Corollary 3, delta: 6 (6 + 12 / 6) = 48
        (1.0, 1, 1 / 60, 1 / 6, 1 / 360.4),  # Corollary 3, w: 6 (60 + 4 / 60) = 360.4
    ],
)
def test_simplified_condition_of_theorem_1_and_corollary_3(
    L: float, n: int, sigma: float, tau: float, rho: float
) -> None:
    assert steps.weak_mvi_simplified(sigma, tau, L=L, n=n, rho=rho * (1 - CLOSE))
    assert not steps.weak_mvi_simplified(sigma, tau, L=L, n=n, rho=rho * (1 + CLOSE))
    assert not steps.weak_mvi_simplified(sigma, tau, 0.999, L=L, n=n, rho=0.0)
    assert not steps.weak_mvi_simplified(sigma, (1 + CLOSE) / (6 * n * L), L=L, n=n)
    assert not steps.weak_mvi_simplified((1 + CLOSE) / (6 * L), tau, L=L, n=n)


def test_largest_rho_of_the_simplified_condition() -> None:
    assert steps.largest_rho_simplified(L=2.0, n=3) == pytest.approx((1 / 240, 1 / 12, 1 / 36), rel=1e-14)


def test_bound_factor() -> None:
    # a_w = 11.6, a_d = 14.8, kappa = 0.2: 2 * 3 * 11.6 / (1 - 0.6 - 3 * 0.005 * 11.6)
    assert steps.bound_factor(0.1, 0.1, L11=2, L12=1, n=4, rho=0.005) == pytest.approx(69.6 / 0.226, rel=1e-12)
    # a_w = 4, a_d = 100.48, kappa = 0.1: 2 * 100.48 / (1 - 0.1 - 0.001 * 100.48)
    assert steps.bound_factor(0.25, 0.01, L11=0, L12=1, n=4, rho=0.001) == pytest.approx(200.96 / 0.79952, rel=1e-12)


@pytest.mark.parametrize(
    ("sigma", "tau", "L11", "L12", "n"),
    [(1 / 6, 1 / 3, 2.0, 0.0, 4), (1 / 6, 1 / 6, 0.0, 1.0, 4), (1 / 3, 1 / 3, 0.0, 1.0, 1), (1 / 3, 9.0, 1.0, 0.0, 1)],
)
def test_general_condition_of_theorem_2_and_corollary_4(
    sigma: float, tau: float, L11: float, L12: float, n: int
) -> None:
    """These steps lie on kappa = 1/3: by L11 sigma, and by L12 sqrt(sigma tau n)."""
    assert steps.kappa(sigma, tau, L11=L11, L12=L12, n=n) == pytest.approx(1 / 3, rel=1e-14)
    theta = steps.contraction(sigma, tau, mu=0.3, n=n)
    assert steps.strong_mvi(sigma, tau, theta, L11=L11, L12=L12, n=n, mu=0.3)
    longer = sigma * (1 + CLOSE)
    assert not steps.strong_mvi(longer, tau, 1.0, L11=L11, L12=L12, n=n, mu=0.3)
    assert not steps.strong_mvi(sigma, tau, theta * (1 - CLOSE), L11=L11, L12=L12, n=n, mu=0.3)
    assert not steps.strong_mvi(sigma, tau, 1 + CLOSE, L11=L11, L12=L12, n=n, mu=0.3)


@pytest.mark.parametrize("n", [1, 5])
def test_simplified_condition_of_theorem_2_and_corollary_4(n: int) -> None:
    L, mu = 2.0, 0.3
    sigma, tau = 1 / 6, 1 / (6 * n)
    theta = steps.contraction(sigma, tau, mu=mu, n=n)
    assert steps.strong_mvi_simplified(sigma, tau, theta, L=L, n=n, mu=mu)
    assert not steps.strong_mvi_simplified(sigma * (1 + CLOSE), tau, 1.0, L=L, n=n, mu=mu)
    assert not steps.strong_mvi_simplified(sigma, tau * (1 + CLOSE), 1.0, L=L, n=n, mu=mu)
    assert not steps.strong_mvi_simplified(sigma, tau, theta * (1 - CLOSE), L=L, n=n, mu=mu)


def test_theta_of_theorem_2_and_corollary_4() -> None:
    # mu sigma = 0.1, mu tau = 0.05
    assert steps.contraction(0.5, 0.25, mu=0.2, n=1) == pytest.approx(1 / 1.05, rel=1e-15)
    assert steps.contraction(0.25, 0.5, mu=0.2, n=1) == pytest.approx(1 / 1.05, rel=1e-15)
    assert steps.contraction(0.5, 0.25, mu=0.2, n=5) == pytest.approx(1.04 / 1.05, rel=1e-15)
    assert steps.contraction(0.5, 2.5, mu=0.2, n=2) == pytest.approx(1 / 1.1, rel=1e-15)  # 1.25 / 1.5 is less


def test_condition_of_spdhg() -> None:
    assert steps.bilinear(0.5, 0.5, L12=1, n=4 - 1)
    assert not steps.bilinear(0.5, 0.5, L12=1, n=4)
    assert not steps.bilinear(0.5, 0.5, 0.9, L12=1, n=1)


def test_known_mu_with_theta_1_is_judged_by_the_other_conditions() -> None:
    constants = Constants(L11=0.0, L12=1.0, L22=0.0, mu=0.1)
    at_09 = steps.StepSizes(0.9, 0.9)  # kappa = 0.9: inside SPDHG's condition, outside Theorem 2
    assert steps.hybrid_condition(at_09, constants, 1, is_bilinear=True)
    assert not steps.hybrid_condition(steps.StepSizes(0.9, 0.9, 0.95), constants, 1, is_bilinear=True)
    assert "Corollary 3" in steps.hybrid_condition(at_09, constants, 1, is_bilinear=False).text
