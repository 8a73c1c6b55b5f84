"""Images for the zoo: a test image, and differences along an axis."""

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.minimax.bilinear import LinearMap


def phantom(size: int, *, noise: float = 0.1, seed: int = 0) -> Tensor:
    """Return a piecewise constant test image in [0, 1] with noise.

    Args:
        size: The number of rows and of columns.
        noise: The standard deviation of the noise.
        seed: The seed of the noise.
    Returns:
        The image, in float64.
    Example:
        >>> image = phantom(8, noise=0)
        >>> image.shape, round(float(image.max()), 2)
        (torch.Size([8, 8]), 0.9)
    """
    row, column = torch.meshgrid(*2 * (torch.linspace(-1, 1, size, dtype=torch.float64),), indexing="ij")
    image = 0.2 + 0.3 * (row.abs().maximum(column.abs()) < 0.8)
    image = (
        image + 0.4 * ((row + 0.2) ** 2 + (column - 0.1) ** 2 < 0.2) - 0.3 * ((row - 0.45).abs() + column.abs() < 0.25)
    )
    return image + noise * torch.randn(size, size, generator=generator(seed, "phantom"), dtype=torch.float64)


def difference(axis: int) -> LinearMap:
    """Return forward differences along an axis of an image, zero at the last pixel, and their adjoint."""

    def forward(w: Tensor) -> Tensor:
        out, last = torch.empty_like(w), w.shape[axis] - 1
        torch.sub(w.narrow(axis, 1, last), w.narrow(axis, 0, last), out=out.narrow(axis, 0, last))
        out.select(axis, last).zero_()
        return out

    def adjoint(d: Tensor) -> Tensor:
        out, last = torch.zeros_like(d), d.shape[axis] - 1
        if last > 0:
            torch.sub(d.narrow(axis, 0, last - 1), d.narrow(axis, 1, last - 1), out=out.narrow(axis, 1, last - 1))
            torch.neg(d.select(axis, 0), out=out.select(axis, 0))
            out.select(axis, last).copy_(d.select(axis, last - 1))
        return out

    return LinearMap(forward, adjoint)
