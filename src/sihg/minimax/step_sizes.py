"""Step sizes: the conditions of Theorems 1 and 2 and Corollaries 3 and 4, and the best choice within them.

The corollaries are the theorems with n = 1. The "general" conditions are those of the appendix. The "simplified"
conditions of the main text need only L = max{L11, L12, L22}, and admit much less.

Example:
    >>> from sihg.minimax import steps
    >>> bool(steps.weak_mvi(0.1, 0.1, L11=1.0, L12=1.0, rho=0.01)), bool(steps.weak_mvi(1.0, 0.1, L11=1.0, L12=1.0))
    (True, False)
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.minimax.constants import Constants

__all__ = [
    "Condition",
    "StepSizes",
    "best_bilinear",
    "best_strong",
    "best_weak",
    "bilinear",
    "bound_factor",
    "contraction",
    "kappa",
    "largest_rho",
    "largest_rho_simplified",
    "strong_mvi",
    "strong_mvi_simplified",
    "weak_mvi",
    "weak_mvi_simplified",
]
Grid = NDArray[np.float64]
S = TypeVar("S", float, NDArray[np.float64])  # a step size, or a grid of them
INSIDE = 0.999  # chosen steps are at most this fraction of a strict bound


@dataclass(frozen=True)
class Condition:
    """Whether the condition of a theorem holds for some steps, and a sentence with the numbers.

    Example:
        >>> condition = weak_mvi(1.0, 1.0, L11=1.0, L12=1.0)
        >>> bool(condition), "kappa = 1" in condition.text
        (False, True)
    """

    holds: bool
    text: str

    def __bool__(self) -> bool:
        return self.holds


@dataclass(frozen=True)
class StepSizes:
    """Step sizes and their source.

    Example:
        >>> StepSizes(0.1, 0.2).theta
        1.0
    """

    sigma: float
    tau: float
    theta: float = 1.0
    source: str = "given"


def kappa(sigma: float, tau: float, *, L11: float, L12: float, n: int = 1) -> float:
    """Return max{L12 sqrt(sigma tau n), L11 sigma} (Lemma 4).

    Example:
        >>> kappa(0.1, 0.4, L11=1.0, L12=1.0)
        0.2
    """
    return max(L12 * sqrt(sigma * tau * n), L11 * sigma)


def weak_mvi(
    sigma: float, tau: float, theta: float = 1.0, *, L11: float, L12: float, n: int = 1, rho: float = 0.0
) -> Condition:
    """Check the general condition of Theorem 1 (n = 1: Corollary 3).

    theta = 1 and kappa < min{1/3 - rho (1/sigma + 4 L11^2 sigma), 1 - rho (1/tau + 12 n L12^2 tau)}

    Example:
        >>> bool(weak_mvi(0.1, 0.1, L11=1.0, L12=1.0, n=4, rho=0.001))
        True
    """
    left, (a_w, a_d) = kappa(sigma, tau, L11=L11, L12=L12, n=n), _factors_of_rho(sigma, tau, L11, L12, n)
    right = min(1 / 3 - rho * a_w, 1 - rho * a_d)
    name = "Theorem 1" if n > 1 else "Corollary 3"
    limit = min((1 / 3 - left) / a_w, (1 - left) / a_d)
    allowed = f"rho < {limit:.4g}, the problem has {rho:.4g}" if limit > 0 else "no rho: smaller steps might"
    return Condition(
        theta == 1 and left < right,
        f"with sigma = {sigma:.4g} and tau = {tau:.4g}, {name} admits theta = 1, here {theta:.4g}, and {allowed} "
        f"(kappa = {left:.4g} must be below {right:.4g}; L11 = {L11:.4g}, L12 = {L12:.4g}, n = {n})",
    )


def weak_mvi_simplified(
    sigma: float, tau: float, theta: float = 1.0, *, L: float, n: int = 1, rho: float = 0.0
) -> Condition:
    """Check the simplified condition of Theorem 1 (n = 1: Corollary 3).

    theta = 1, sigma <= 1/(6L), tau <= 1/(6nL), rho < 1/(6 max{1/sigma + 4 L^2 sigma, 1/tau + 12 n L^2 tau})

    Example:
        >>> bool(weak_mvi_simplified(1 / 6, 1 / 6, L=1.0)), bool(weak_mvi_simplified(0.2, 0.2, L=1.0))
        (True, False)
    """
    limit = 1 / (6 * max(_factors_of_rho(sigma, tau, L, L, n)))
    return Condition(
        theta == 1 and sigma <= 1 / (6 * L) and tau <= 1 / (6 * n * L) and rho < limit,
        f"simplified: theta = 1, sigma <= {1 / (6 * L):.4g}, tau <= {1 / (6 * n * L):.4g}, rho < {limit:.4g}; "
        f"sigma = {sigma:.4g}, tau = {tau:.4g}, theta = {theta:.4g}, rho = {rho:.4g}",
    )


def contraction(sigma: float, tau: float, *, mu: float, n: int = 1) -> float:
    """Return theta of Theorem 2: max{1/(1 + mu sigma), (1 + (n-1) mu tau / n)/(1 + mu tau)}.

    Example:
        >>> contraction(1.0, 1.0, mu=1.0)
        0.5
    """
    return max(1 / (1 + mu * sigma), (1 + (n - 1) * mu * tau / n) / (1 + mu * tau))


def strong_mvi(sigma: float, tau: float, theta: float, *, L11: float, L12: float, n: int = 1, mu: float) -> Condition:
    """Check the general condition of Theorem 2 (n = 1: Corollary 4): kappa <= 1/3 and theta = `contraction`.

    The proof only needs contraction <= theta <= 1, and then gives the rate theta^K.

    Example:
        >>> bool(strong_mvi(0.25, 0.25, contraction(0.25, 0.25, mu=1.0), L11=1.0, L12=1.0, mu=1.0))
        True
    """
    left, wanted = kappa(sigma, tau, L11=L11, L12=L12, n=n), contraction(sigma, tau, mu=mu, n=n)
    name = "Theorem 2" if n > 1 else "Corollary 4"
    slack = 1 + 1e-12  # steps on the boundary are allowed, up to rounding
    return Condition(
        left <= slack / 3 and wanted <= theta * slack and theta <= 1,
        f"{name} asks kappa <= 1/3 and {wanted:.6g} <= theta <= 1; sigma = {sigma:.4g}, tau = {tau:.4g} give "
        f"kappa = {left:.4g} (L11 = {L11:.4g}, L12 = {L12:.4g}, n = {n}, mu = {mu:.4g}), theta = {theta:.6g}",
    )


def strong_mvi_simplified(sigma: float, tau: float, theta: float, *, L: float, n: int = 1, mu: float) -> Condition:
    """Check the simplified condition of Theorem 2: sigma <= 1/(3L), tau <= 1/(3nL), theta = `contraction`.

    Example:
        >>> bool(strong_mvi_simplified(0.25, 0.25, contraction(0.25, 0.25, mu=1.0), L=1.0, mu=1.0))
        True
    """
    wanted, slack = contraction(sigma, tau, mu=mu, n=n), 1 + 1e-12
    return Condition(
        sigma <= slack / (3 * L) and tau <= slack / (3 * n * L) and wanted <= theta * slack and theta <= 1,
        f"simplified: sigma <= {1 / (3 * L):.4g}, tau <= {1 / (3 * n * L):.4g}, {wanted:.6g} <= theta <= 1; "
        f"sigma = {sigma:.4g}, tau = {tau:.4g}, theta = {theta:.6g}",
    )


def bilinear(sigma: float, tau: float, theta: float = 1.0, *, L12: float, n: int = 1) -> Condition:
    """Check SPDHG's condition for bilinear phi and convex f, g: theta = 1 and L12 sqrt(sigma tau n) < 1.

    Example:
        >>> bool(bilinear(0.9, 0.9, L12=1.0)), bool(bilinear(1.0, 1.0, L12=1.0))
        (True, False)
    """
    left = L12 * sqrt(sigma * tau * n)
    return Condition(
        theta == 1 and left < 1,
        f"bilinear phi asks theta = 1 and L12 sqrt(sigma tau n) < 1; sigma = {sigma:.4g}, tau = {tau:.4g}, "
        f"theta = {theta:.4g} give {left:.4g} (L12 = {L12:.4g}, n = {n})",
    )


def bound_factor(sigma: float, tau: float, *, L11: float, L12: float, n: int = 1, rho: float = 0.0) -> float:
    """Return C in sum_k E||F(w^k, delta-hat^k)||^2 <= C {||w*-w0||^2/(2 sigma) + n ||delta*-delta0||^2/(2 tau)}.

    From the end of the proof of Theorem 1: C = 2 max{3 a_w / c_w, a_d / c_d} with a_w = 1/sigma + 4 L11^2 sigma,
    a_d = 1/tau + 12 n L12^2 tau, c_w = 1 - 3 kappa - 3 rho a_w and c_d = 1 - kappa - rho a_d. Infinite if the
    condition of Theorem 1 fails.

    Example:
        >>> bound_factor(1.0, 1.0, L11=1.0, L12=1.0)  # outside the condition
        inf
    """
    return float(_bound_factor(np.array(sigma), np.array(tau), L11, L12, n, rho))


def largest_rho(*, L11: float, L12: float, n: int = 1, L22: float = 0.0) -> tuple[float, float, float]:
    """Return (rho, sigma, tau): the largest rho that the general Theorem 1 admits, and its steps.

    Example:
        >>> round(largest_rho(L11=0.0, L12=1.0)[0], 4)
        0.0628
    """

    def admissible(sigma: Grid, tau: Grid) -> Grid:
        k, (a_w, a_d) = _kappas(sigma, tau, L11, L12, n), _factors_of_rho(sigma, tau, L11, L12, n)
        return np.minimum((1 / 3 - k) / a_w, (1 - k) / a_d)

    sigma, tau = _search(admissible, L11, L12, n, L22)
    return float(admissible(np.array(sigma), np.array(tau))), sigma, tau


def largest_rho_simplified(*, L: float, n: int = 1) -> tuple[float, float, float]:
    """Return (rho, sigma, tau) for the simplified condition, whose best steps are the largest it allows.

    Example:
        >>> round(largest_rho_simplified(L=1.0)[0], 4)
        0.0208
    """
    sigma, tau = 1 / (6 * L), 1 / (6 * n * L)
    return 1 / (6 * max(_factors_of_rho(sigma, tau, L, L, n))), sigma, tau


def best_weak(*, L11: float, L12: float, n: int = 1, rho: float = 0.0, L22: float = 0.0) -> StepSizes:
    """Choose the steps with the smallest bound of Theorem 1 from unit distances, with tau L22 < 1.

    If rho is too large for any steps, choose those that admit the largest rho.

    Example:
        >>> best_weak(L11=1.0, L12=1.0, n=4, rho=0.001).source
        'Theorem 1 (general, n = 4, rho = 0.001)'
    """
    limit, sigma, tau = largest_rho(L11=L11, L12=L12, n=n, L22=L22)
    if rho >= limit:
        return StepSizes(sigma, tau, 1.0, f"Theorem 1's largest rho {limit:.4g} (the problem has {rho:.4g})")

    def gain(sigma: Grid, tau: Grid) -> Grid:
        return -np.log(_bound_factor(sigma, tau, L11, L12, n, rho) * (1 / sigma + n / tau))

    sigma, tau = _search(gain, L11, L12, n, L22, start=(sigma, tau))
    return StepSizes(sigma, tau, 1.0, f"Theorem 1 (general, n = {n}, rho = {rho:.4g})")


def best_strong(*, L11: float, L12: float, mu: float, n: int = 1, L22: float = 0.0) -> StepSizes:
    """Choose the steps with the smallest contraction factor theta of Theorem 2, with tau L22 < 1.

    Example:
        >>> 0 < best_strong(L11=1.0, L12=1.0, mu=0.1).theta < 1
        True
    """

    def gain(sigma: Grid, tau: Grid) -> Grid:
        k = _kappas(sigma, tau, L11, L12, n)
        slowest = np.minimum(mu * sigma / (1 + mu * sigma), mu * tau / n / (1 + mu * tau))  # 1 - theta
        return np.where(k <= 1 / 3, slowest, -inf)

    sigma, tau = _search(gain, L11, L12, n, L22)
    return StepSizes(sigma, tau, contraction(sigma, tau, mu=mu, n=n), f"Theorem 2 (general, n = {n}, mu = {mu:.4g})")


def best_bilinear(*, L12: float, n: int = 1) -> StepSizes:
    """Choose equal steps just inside SPDHG's condition.

    Example:
        >>> best_bilinear(L12=2.0).sigma
        0.495
    """
    step = 0.99 / (positive(L12) * sqrt(n))
    return StepSizes(step, step, 1.0, f"SPDHG's condition for bilinear phi (n = {n})")


def hybrid_steps(constants: Constants, n: int, *, is_bilinear: bool) -> StepSizes:
    """Choose the steps of SSI-HG (or, with n = 1, of DSI-HG) from a problem's constants."""
    c = _known(constants, n)
    if constants.mu:
        steps = best_strong(**c, mu=constants.mu)
    elif is_bilinear:
        steps = best_bilinear(L12=c["L12"], n=n)
    else:
        steps = best_weak(**c, rho=constants.rho or 0.0)
    unknown = ", rho not known and taken as 0" if constants.rho is None and not (constants.mu or is_bilinear) else ""
    return StepSizes(steps.sigma, steps.tau, steps.theta, f"{steps.source} with {constants.source}{unknown}")


def hybrid_condition(steps: StepSizes, constants: Constants, n: int, *, is_bilinear: bool) -> Condition:
    """Check the condition under which SSI-HG or DSI-HG converges on a problem with these constants."""
    L11, L12, rho = constants.L11 or 0.0, coupling_constant(constants, n), constants.rho or 0.0
    if constants.mu and steps.theta < 1:
        return strong_mvi(steps.sigma, steps.tau, steps.theta, L11=L11, L12=L12, n=n, mu=constants.mu)
    if is_bilinear:
        return bilinear(steps.sigma, steps.tau, steps.theta, L12=L12, n=n)
    return weak_mvi(steps.sigma, steps.tau, steps.theta, L11=L11, L12=L12, n=n, rho=rho)


def coupling_constant(constants: Constants, n: int) -> float:
    """Return L12_block if blocks move one at a time and it is known, else L12."""
    L12 = constants.L12 if n == 1 or constants.L12_block is None else constants.L12_block
    return L12 or 0.0


def operator_steps(constants: Constants, fraction: float, rule: str) -> StepSizes:
    """Choose sigma = tau = fraction / L with L = max{L11, L22} + L12, a Lipschitz constant of F."""
    c = _known(constants, 1)
    step = fraction / positive(max(c["L11"], c["L22"]) + c["L12"])
    return StepSizes(step, step, 1.0, f"{rule} with {constants.source}")


class _Lipschitz(TypedDict):
    L11: float
    L12: float
    L22: float
    n: int


def _known(constants: Constants, n: int) -> _Lipschitz:
    if constants.L11 is None or constants.L12 is None or constants.L22 is None:
        raise InputError("lipschitz-unknown")
    return {"L11": constants.L11, "L12": coupling_constant(constants, n), "L22": constants.L22, "n": n}


def positive(lipschitz: float) -> float:
    """Return a Lipschitz constant of the coupling, or raise InputError unless it is positive."""
    if not lipschitz > 0:
        raise InputError("not-coupled", value=lipschitz)
    return lipschitz


def _factors_of_rho(sigma: S, tau: S, L11: float, L12: float, n: int) -> tuple[S, S]:
    """Return 1/sigma + 4 L11^2 sigma and 1/tau + 12 n L12^2 tau, by which Theorem 1 multiplies rho."""
    return 1 / sigma + 4 * L11**2 * sigma, 1 / tau + 12 * n * L12**2 * tau


def _kappas(sigma: Grid, tau: Grid, L11: float, L12: float, n: int) -> Grid:
    return np.maximum(L12 * np.sqrt(sigma * tau * n), L11 * sigma)


def _bound_factor(sigma: Grid, tau: Grid, L11: float, L12: float, n: int, rho: float) -> Grid:
    k, (a_w, a_d) = _kappas(sigma, tau, L11, L12, n), _factors_of_rho(sigma, tau, L11, L12, n)
    c_w, c_d = 1 - 3 * k - 3 * rho * a_w, 1 - k - rho * a_d
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((c_w > 0) & (c_d > 0), 2 * np.maximum(3 * a_w / c_w, a_d / c_d), inf)


def _search(
    gain: Callable[[Grid, Grid], Grid],
    L11: float,
    L12: float,
    n: int,
    L22: float,
    start: tuple[float, float] | None = None,
) -> tuple[float, float]:
    """Return the (sigma, tau) of largest gain, on a logarithmic grid that shrinks around the best point."""
    L = positive(L12)
    largest_sigma = INSIDE / (3 * L11) if L11 else inf
    largest_tau = INSIDE / L22 if L22 else inf
    log_sigma, log_tau = np.log(start) if start else (np.log(0.3 / L), np.log(0.1 / (n * L)))
    width = 14.0  # in logarithms; wide enough for couplings that differ by a factor of a million
    offsets = np.linspace(-1, 1, 65)
    for _ in range(24):
        sigma = np.minimum(np.exp(log_sigma + width * offsets), largest_sigma)
        tau = np.minimum(np.exp(log_tau + width * offsets), largest_tau)
        values = gain(sigma[:, None], tau[None, :])
        a, b = np.unravel_index(int(np.nanargmax(values)), values.shape)
        log_sigma, log_tau = float(np.log(sigma[a])), float(np.log(tau[b]))
        width *= 0.35
    return float(np.exp(log_sigma)), float(np.exp(log_tau))
