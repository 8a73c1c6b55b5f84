"""The implicit step d+ = prox_g^tau[c + tau grad phi(d+)] (Alg. 1, line 6), solved to a stated error.

It is the minimiser of g(d) - phi(d) + ||d - c||^2 / (2 tau) (equation "implicit" of the paper). With L22 the
Lipschitz constant of grad phi and q = tau L22 < 1 it exists, is unique, and two iterations find it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Gradient = Callable[[Tensor], Tensor]
Prox = Callable[[Tensor, float], Tensor]

PICARD_BELOW = 0.8  # above this q, FISTA's rate 1 - sqrt((1 - q)/(1 + q)) beats Picard's q


class Implicit(NamedTuple):
    """A solved implicit step: the point, the gradients it took and a bound on its distance to the exact one."""

    point: Tensor
    steps: int
    error: float
    converged: bool


def implicit_step(
    gradient: Gradient,
    prox: Prox,
    centre: Tensor,
    tau: float,
    curvature: float,
    *,
    tolerance: float | None = None,
    limit: int = 200,
) -> Implicit:
    """Solve the implicit step by Picard iteration or FISTA, whichever suits q = tau * curvature.

    `tolerance` is relative to the size of the point; by default a few units of rounding. `curvature` is L22 or an
    estimate of it: where Picard is seen not to contract, FISTA takes over with the curvature that was seen.
    """
    if tolerance is None:
        tolerance = 4 * torch.finfo(centre.dtype).eps
    if tau * curvature < PICARD_BELOW:
        result, seen = picard(gradient, prox, centre, tau, curvature, tolerance=tolerance, limit=limit)
        if result.converged:
            return result
        curvature = max(curvature, 2 * seen)
        rest = fista(gradient, prox, centre, tau, curvature, tolerance=tolerance, limit=limit)
        return rest._replace(steps=result.steps + rest.steps)
    return fista(gradient, prox, centre, tau, curvature, tolerance=tolerance, limit=limit)


def picard(
    gradient: Gradient, prox: Prox, centre: Tensor, tau: float, curvature: float, *, tolerance: float, limit: int
) -> tuple[Implicit, float]:
    """Iterate d <- prox[c + tau grad phi(d)], a contraction with factor q; also give the curvature seen.

    After a step of length s the point is within q/(1-q) s of the exact one; with q = 0 one step is exact.
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
        if error <= tolerance * size or (stalled and length <= 1e4 * tolerance * size):
            return Implicit(d, t, error, True), seen
        if stalled or not length < float("inf"):
            seen = max(curvature, length / last / tau if length < float("inf") else 1 / tau)
            return Implicit(d, t, error, False), seen
        last = length
    return Implicit(d, limit, error, False), curvature


def fista(
    gradient: Gradient, prox: Prox, centre: Tensor, tau: float, curvature: float, *, tolerance: float, limit: int
) -> Implicit:
    """Accelerated proximal gradient on -phi + ||d - c||^2/(2 tau), strongly convex with 1/tau - L22 (q < 1).

    The step y -> d leaves a subgradient of size at most 2/s ||y - d||, so ||d - exact|| <= 2 ||y - d|| / (s m) with
    s the step size and m the strong convexity.
    """
    s, m = 1 / (1 / tau + curvature), max(1 / tau - curvature, 0.0)
    beta_limit = (1 - (m * s) ** 0.5) / (1 + (m * s) ** 0.5)
    d = y = centre
    t, error = 1.0, float("inf")
    for k in range(1, limit + 1):
        new = prox(y + s * (gradient(y) - (y - centre) / tau), s)
        length, size = _size(new - y), max(_size(centre), _size(new))
        error = 2 * length / (s * m) if m > 0 else float("inf")
        # Without strong convexity (q >= 1) there is no bound; then a step lost in rounding has to do.
        if error <= tolerance * size or length <= 0.25 * tolerance * size:
            return Implicit(new, k, error, True)
        if float((y - new) @ (new - d)) > 0:  # momentum points uphill: restart, which finds unknown strong convexity
            t = 1.0
        t, before = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
        y, d = new + min((before - 1) / t, beta_limit) * (new - d), new
    return Implicit(d, limit, error, False)


def _size(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))
