"""The small CNN for MNIST and the like: three convolutions and a linear layer; its variants."""

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from sihg.robust.models.committee import Committee
from sihg.robust.models.threshold import Threshold


class FlattenPixels(nn.Module):
    """Flatten by pixel, all channels of a pixel together: with channels last in memory nothing is copied."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one row per sample."""
        return x.permute(0, 2, 3, 1).flatten(1)


def small_cnn(shape: tuple[int, int, int], classes: int, width: float = 1.0, *before: nn.Module) -> nn.Module:
    """Build convolutions of 16, 32, 64 channels with stride 2 (up to 16 pixels the first has 1), and a linear layer."""
    return kaiming_(_four_layers(shape, classes, width, before, norm=False))


def norm_cnn(shape: tuple[int, int, int], classes: int, width: float = 1.0) -> nn.Module:
    """Build the small CNN with batch normalisation before each ReLU, from torch's own initial weights.

    Plain PGD AT at eps 0.4 switches off the ReLUs of the small CNN within 200 steps; these stay active.
    """
    return _four_layers(shape, classes, width, norm=True)


def _four_layers(
    shape: tuple[int, int, int], classes: int, width: float, before: Sequence[nn.Module] = (), *, norm: bool
) -> nn.Module:
    depth, *sides = shape
    strides = (1, 2, 2) if min(sides) <= 16 else (2, 2, 2)
    channels = [depth, *(max(1, round(c * width)) for c in (16, 32, 64))]
    stages: list[list[nn.Module]] = []
    for inputs, outputs, stride in zip(channels, channels[1:], strides, strict=False):
        conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=not norm)
        stages.append([conv, *([nn.BatchNorm2d(outputs)] if norm else []), nn.ReLU()])
        sides = [math.ceil(side / stride) for side in sides]
    stem = nn.Sequential(*before, *stages[0])
    head = nn.Linear(channels[-1] * math.prod(sides), classes)
    body = nn.Sequential(*stages[1], *stages[2], FlattenPixels(), head)
    return nn.Sequential(OrderedDict(stem=stem, body=body))


def threshold_cnn(shape: tuple[int, int, int], classes: int, width: float = 1.0) -> nn.Module:
    """Build the small CNN behind a threshold of its pixels, from 0.4 to 0.6."""
    return small_cnn(shape, classes, width, Threshold())


def threshold_pair(shape: tuple[int, int, int], classes: int, width: float = 1.0) -> nn.Module:
    """Build a committee of two small CNNs behind one threshold of the pixels."""
    pair = Committee(small_cnn(shape, classes, width), small_cnn(shape, classes, width))
    return nn.Sequential(OrderedDict(stem=Threshold(), body=pair))


def kaiming_(model: nn.Module) -> nn.Module:
    """Set Kaiming-normal weights and zero biases; from torch's defaults, training at eps 0.4 predicts one class."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
