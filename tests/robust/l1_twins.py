"""The L1 ball within bounds, as plain as can be: the projection by bisection, the steepest step entry by entry."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def plain_projection(delta: Array, low: Array, high: Array, eps: float) -> Array:
    """Bisect the multiplier of the norm."""

    def at(λ: float) -> Array:
        shrunk: Array = np.clip(np.sign(delta) * np.maximum(np.abs(delta) - λ, 0), low, high)
        return shrunk

    if np.abs(at(0)).sum() <= eps:
        return at(0)
    near, far = 0.0, float(np.abs(delta).max())
    for _ in range(100):
        middle = (near + far) / 2
        near, far = (middle, far) if np.abs(at(middle)).sum() > eps else (near, middle)
    return at(far)


def plain_step(delta: Array, g: Array, low: Array, high: Array, length: float) -> Array:
    """Move the entry with the largest gradient to its bound, then the next one, until the length is used."""
    new = delta.copy()
    for i in np.argsort(-np.abs(g), kind="stable"):
        if g[i] == 0:
            break
        moved = min(length, high[i] - new[i] if g[i] > 0 else new[i] - low[i])
        new[i] += np.sign(g[i]) * moved
        length -= moved
    return new
