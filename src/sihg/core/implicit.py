"""Solve the implicit step d+ = prox_g^tau[c + tau grad phi(d+)] (Alg. 1, line 6) to a stated error.

d+ minimises g(d) - phi(d) + ||d - c||^2 / (2 tau) (equation "implicit" of the paper). It exists and is unique if
q = tau L22 < 1, where L22 is the Lipschitz constant of grad phi. Picard iteration or FISTA finds it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Gradient = Callable[[Tensor], Tensor]
Prox = Callable[[Tensor, float], Tensor]

PICARD_BELOW = 0.8  # above this q, FISTA's rate 1 - sqrt((1 - q)/(1 + q)) beats Picard's q


class Implicit(NamedTuple):
    """A solved implicit step."""

    point: Tensor
    steps: int  # the number of gradients that it took
    error: float  # a bound on the distance of `point` to the exact solution
    converged: bool


def implicit_step(
    gradient: Gradient,
    prox: Prox,
    centre: Tensor,
    tau: float,
    curvature: float,
    *,
    tolerance: float | None = None,
    share: float = 0.0,
    limit: int = 200,
) -> Implicit:
    r"""Solve the implicit step by Picard iteration or by FISTA, whichever is faster for q = tau * curvature.

    $$d^+ = \operatorname{prox}_g^\tau[c + \tau \nabla \phi(d^+)]$$

    Args:
        gradient: d -> grad phi(d).
        prox: (z, eta) -> prox_g^eta(z).
        centre: The point c from which to step, a flat vector.
        tau: The step size.
        curvature: L22, or an estimate of it. If Picard iteration does not contract, FISTA continues with the observed
            curvature.
        tolerance: The error allowed, relative to the norm of the point. Default: a few units of rounding.
        share: The error allowed, relative to the length of the step from c; the larger of both counts.
        limit: The maximum number of iterations of each method.
    Returns:
        The point, the number of gradients, a bound on the error, and whether the tolerance was reached.
    Example:
        With phi(d) = -d^2 / 2 and g = 0 the step from c = 3 is c / (1 + tau).

        >>> c = torch.tensor([3.0], dtype=torch.float64)
        >>> round(implicit_step(lambda d: -d, lambda z, eta: z, c, tau=0.5, curvature=1.0).point.item(), 6)
        2.0
    """
    if tolerance is None:
        tolerance = 4 * torch.finfo(centre.dtype).eps
    if tau * curvature < PICARD_BELOW:
        result, seen = picard(gradient, prox, centre, tau, curvature, tolerance=tolerance, share=share, limit=limit)
        if result.converged:
            return result
        curvature = max(curvature, 2 * seen)
        rest = fista(gradient, prox, centre, tau, curvature, tolerance=tolerance, share=share, limit=limit)
        return rest._replace(steps=result.steps + rest.steps)
    return fista(gradient, prox, centre, tau, curvature, tolerance=tolerance, share=share, limit=limit)


def picard(
    gradient: Gradient,
    prox: Prox,
    centre: Tensor,
    tau: float,
    curvature: float,
    *,
    tolerance: float,
    limit: int,
    share: float = 0.0,
) -> tuple[Implicit, float]:
    """Iterate d <- prox[c + tau grad phi(d)], a contraction with factor q; return the step and the observed curvature.

    After a step of length s the point is within q/(1-q) s of the exact solution; if q = 0, one step is exact.
    """
    q = tau * curvature
    d, size, last, seen = centre, 0.0, float("inf"), 0.0
    for t in range(1, limit + 1):
        new = prox(centre.add(gradient(d), alpha=tau), tau)
        if q == 0:
            return Implicit(new, t, 0.0, True), 0.0
        length = _size(new - d)
        size = size if t > 1 else max(_size(centre), _size(new))
        ratio = length / last if length < last else 0.0
        d, error = new, max(q, ratio) / (1 - max(q, ratio)) * length
        stalled = length >= last
        allowed = max(tolerance * size, share * _size(d - centre) if share else 0.0)
        if error <= allowed or (stalled and length <= 1e4 * tolerance * size):
            return Implicit(d, t, error, True), seen
        if stalled or not length < float("inf"):
            seen = max(curvature, length / last / tau if length < float("inf") else 1 / tau)
            return Implicit(d, t, error, False), seen
        last = length
    return Implicit(d, limit, error, False), curvature


def fista(
    gradient: Gradient,
    prox: Prox,
    centre: Tensor,
    tau: float,
    curvature: float,
    *,
    tolerance: float,
    limit: int,
    share: float = 0.0,
) -> Implicit:
    """Minimise -phi(d) + ||d - c||^2/(2 tau) + g(d) by accelerated proximal gradient steps.

    The smooth part is strongly convex with constant m = 1/tau - L22. A step y -> d of size s leaves a subgradient of
    norm at most 2/s ||y - d||, so ||d - exact|| <= 2 ||y - d|| / (s m).
    """
    s, m = 1 / (1 / tau + curvature), max(1 / tau - curvature, 0.0)
    beta_limit = (1 - (m * s) ** 0.5) / (1 + (m * s) ** 0.5)
    d = y = centre
    t, error = 1.0, float("inf")
    for k in range(1, limit + 1):
        new = prox(y + s * (gradient(y) - (y - centre) / tau), s)
        length, size = _size(new - y), max(_size(centre), _size(new))
        error = 2 * length / (s * m) if m > 0 else float("inf")
        # Without strong convexity (q >= 1) there is no bound: stop when the step is lost in rounding.
        allowed = max(tolerance * size, share * _size(new - centre) if share else 0.0)
        if error <= allowed or length <= 0.25 * tolerance * size:
            return Implicit(new, k, error, True)
        if float((y - new) @ (new - d)) > 0:  # momentum points uphill: restart to adapt to the strong convexity
            t = 1.0
        t, before = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
        y, d = new + min((before - 1) / t, beta_limit) * (new - d), new
    return Implicit(d, limit, error, False)


def _size(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))
