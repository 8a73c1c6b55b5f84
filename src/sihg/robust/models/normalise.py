"""Input normalisation as a layer, so that attacks always work on images in [0, 1]."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sihg.errors import InputError


class Normalise(nn.Module):
    """Subtract the mean of each channel and divide by its standard deviation; the first layer of the stem.

    Args:
        mean: One number per channel.
        std: One number per channel, > 0.
    Raises:
        InputError: If the numbers cannot be used, or, when called, if images have other channels.
    Example:
        >>> layer = Normalise([0.5], [0.25])
        >>> layer(torch.ones(1, 1, 1, 1)).item()
        2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if not mean or len(mean) != len(std):
            raise InputError("normalise-channels", means=len(mean), stds=len(std))
        if not all(map(math.isfinite, [*mean, *std])) or min(std) <= 0:
            raise InputError("normalise-range", mean=list(mean), std=list(std))
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images of shape (..., channels, height, width)."""
        if x.dim() < 3 or x.shape[-3] != len(self.mean):
            raise InputError("image-channels", channels=len(self.mean), shape=tuple(x.shape))
        return (x - self.mean) / self.std
