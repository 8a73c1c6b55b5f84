"""Noise in a ball around zero, per row and without bounds."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sihg.parse import ORDERS
from sihg.robust.threat._l1 import L1Set
from sihg.robust.threat._rows import row_norms
from sihg.robust.threat.sets import L2Set, LinfSet

CORNER_SCALE = 1000  # times the radius: the mean size of an entry
_SETS = {"linf": LinfSet, "l2": L2Set, "l1": L1Set}


def uniform_noise(
    norm: str, shape: Sequence[int], radius: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw uniform noise from the ball of `radius`.

    Args:
        norm: "linf", "l2" or "l1".
        shape: The shape of the noise; its first dimension counts rows.
        radius: The radius of the ball.
        generator: Draws the numbers, on the CPU.
        dtype: The type of the noise.
    Returns:
        The noise.
    Example:
        >>> bool(uniform_noise("linf", (2, 3), 0.1, torch.Generator(), torch.float32).abs().max() <= 0.1)
        True
    """
    everywhere = torch.full(tuple(shape), math.inf, dtype=dtype)
    drawn: Tensor = _SETS[norm](-everywhere, everywhere).noisy(None, radius, generator)
    return drawn


def surface_noise(
    norm: str, shape: Sequence[int], radius: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw uniform noise and scale each row to the surface of the ball.

    Args:
        norm: "linf", "l2" or "l1".
        shape: The shape of the noise; its first dimension counts rows.
        radius: The radius of the ball.
        generator: Draws the numbers, on the CPU.
        dtype: The type of the noise.
    Returns:
        The noise.
    Example:
        >>> surface_noise("l2", (2, 3), 1.0, torch.Generator(), torch.float32).norm(dim=1)
        tensor([1.0000, 1.0000])
    """
    drawn = uniform_noise(norm, shape, 1.0, generator, dtype)
    return drawn.mul_(radius / row_norms(drawn, ORDERS[norm]))


def extreme_noise(
    norm: str, shape: Sequence[int], radius: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw corners of the linf box, uniform points of the L2 sphere, or points that L1 sets project to corners.

    Sizes for L1 differ by much more than the radius, so that the projection fills entry after entry.

    Args:
        norm: "linf", "l2" or "l1".
        shape: The shape of the noise; its first dimension counts rows.
        radius: The radius of the ball.
        generator: Draws the numbers, on the CPU.
        dtype: The type of the noise.
    Returns:
        The noise.
    Example:
        >>> extreme_noise("linf", (2, 3), 0.1, torch.Generator(), torch.float32).abs()
        tensor([[0.1000, 0.1000, 0.1000],
                [0.1000, 0.1000, 0.1000]])
    """
    if norm == "linf":
        return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype).mul_(2).sub_(1).mul_(radius)
    if norm == "l1":
        return uniform_noise(norm, shape, radius * CORNER_SCALE * math.prod(shape[1:]), generator, dtype)
    normal = torch.randn(tuple(shape), generator=generator, dtype=dtype)
    return normal.mul_(radius / row_norms(normal))
