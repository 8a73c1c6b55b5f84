"""Input normalisation as a layer, so that attacks always work on images in [0, 1]."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sihg.errors import InputError


class Normalise(nn.Module):
    """(x - mean) / std by channel; put it first in the stem: nn.Sequential(Normalise([0.5], [0.25]), conv)."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if not mean or len(mean) != len(std):
            raise InputError(f"mean has {len(mean)} channels, std has {len(std)}: give both one number a channel")
        if not all(map(math.isfinite, [*mean, *std])) or min(std) <= 0:
            raise InputError(f"mean and std must be finite and std > 0, got {list(mean)} and {list(std)}: correct them")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images of shape (..., channels, height, width)."""
        if x.dim() < 3 or x.shape[-3] != len(self.mean):
            raise InputError(
                f"images of shape {tuple(x.shape)} do not have the {len(self.mean)} channels of mean and std: "
                "give one number a channel"
            )
        return (x - self.mean) / self.std
