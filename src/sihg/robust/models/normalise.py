"""Input normalisation as a layer, so that attacks always work on images in [0, 1]; normalisations by name."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.parse import parse_number

KNOWN = {  # name: mean and standard deviation per channel, as training programs commonly use them
    "none": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar10-per-image": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # the mean of each image's deviation
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5,), (0.5,)),  # to [-1, 1]
    "255": ((0.0,), (1 / 255,)),  # to [0, 255]
}
FOR_ANY_CHANNELS = ("none", "half", "255")
CLOSE = 1e-3  # means and deviations that differ by less have the same name


@dataclass(frozen=True)
class Normalisation:
    """A mean and a standard deviation per channel, or one for all channels.

    Args:
        mean: Subtracted from values in [0, 1].
        std: What the difference is divided by, > 0.
    Raises:
        InputError: If the numbers cannot be used.
    Example:
        >>> Normalisation((0.5,), (0.5,)), str(Normalisation((0.1, 0.2), (1.0, 1.0)))
        (Normalisation(mean=(0.5,), std=(0.5,)), '0.1,0.2/1,1')
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _check(self.mean, self.std)

    @classmethod
    def parse(cls, text: str) -> "Normalisation":
        """Read a name of KNOWN, or MEAN/STD such as 0.5/0.25 or 0.49,0.48,0.45/0.25,0.24,0.26.

        >>> str(Normalisation.parse("0.5,0.5,0.5/0.5,0.5,0.5")), Normalisation.parse("mnist").mean
        ('half', (0.1307,))
        """
        if text in KNOWN:
            return cls(*KNOWN[text])
        mean, slash, std = text.partition("/")
        if not slash:
            raise UnknownNameError("normalisation", text, [*KNOWN, "MEAN/STD"])
        numbers = [[parse_number(part.strip(), "normalise") for part in side.split(",")] for side in (mean, std)]
        return cls(tuple(numbers[0]), tuple(numbers[1]))

    @property
    def changes_nothing(self) -> bool:
        """Whether values stay as they are."""
        return not any(self.mean) and all(value == 1 for value in self.std)

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether samples of this shape are images with its channels."""
        return len(shape) == 3 and len(self.mean) in (1, shape[0])

    def __str__(self) -> str:
        for name, (mean, std) in KNOWN.items():
            if _close(self.mean, mean) and _close(self.std, std):
                return name
        return "/".join(",".join(f"{value:.6g}" for value in side) for side in (self.mean, self.std))


def _close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    wanted = [*wanted] * len(found) if len(wanted) == 1 else wanted
    return len(found) == len(wanted) and all(abs(a - b) < CLOSE for a, b in zip(found, wanted, strict=True))


def _check(mean: Sequence[float], std: Sequence[float]) -> None:
    if not mean or len(mean) != len(std):
        raise InputError("normalise-channels", means=len(mean), stds=len(std))
    if not all(map(math.isfinite, [*mean, *std])) or min(std) <= 0:
        raise InputError("normalise-range", mean=list(mean), std=list(std))


def put_in_front(normalisation: Normalisation, model: nn.Module, shape: Sequence[int]) -> nn.Module:
    """Return the model behind a layer that normalises samples of this shape."""
    if not normalisation.fits(shape):
        raise InputError("normalise-shape", normalisation=str(normalisation), shape=tuple(shape))
    mean, std = (values * (shape[0] // len(values)) for values in (normalisation.mean, normalisation.std))
    layer = Normalise(mean, std).to(next((value.device for value in model.parameters()), torch.device("cpu")))
    whole = nn.Sequential(OrderedDict(normalise=layer, model=model))
    whole.training = layer.training = model.training  # not `train`, which would change the modules of the model
    return whole


def behind_normalise(model: nn.Module) -> nn.Module | None:
    """Return what a model does after the Normalise that it begins with; None if it begins with something else."""
    layers = [*model.children()] if isinstance(model, nn.Sequential) else []
    return nn.Sequential(*layers[1:]) if layers and isinstance(layers[0], Normalise) else None


def known_normalisations(channels: int) -> Iterator[tuple[str, Normalisation]]:
    """Yield the known normalisations of images with so many channels, with their names."""
    for name, (mean, std) in KNOWN.items():
        if len(mean) == channels or name in FOR_ANY_CHANNELS:
            yield name, Normalisation(mean, std)


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
        _check(mean, std)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images of shape (..., channels, height, width)."""
        if x.dim() < 3 or x.shape[-3] != len(self.mean):
            raise InputError("image-channels", channels=len(self.mean), shape=tuple(x.shape))
        return (x - self.mean) / self.std
