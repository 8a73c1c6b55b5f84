"""Networks for certified training on MNIST: a pixel threshold first, weights for interval bounds (Shi et al., 2021).

sihg train --model benchmarks/certified_networks.py:threshold_small --method ibp ...
"""

import math

from torch import nn

from sihg.robust.models.small_cnn import FlattenPixels, threshold_cnn
from sihg.robust.models.threshold import Threshold


def threshold_small(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the small CNN behind a threshold, with these weights."""
    return interval_weights_(threshold_cnn(shape, classes))


def threshold_large(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build two wider convolutions and a hidden layer behind a threshold, with these weights."""
    depth, height, width = shape
    pixels = math.ceil(height / 4) * math.ceil(width / 4)
    layers = [
        *(Threshold(), nn.Conv2d(depth, 32, 5, 2, padding=2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, padding=1), nn.ReLU(), FlattenPixels()),
        *(nn.Linear(64 * pixels, 256), nn.ReLU(), nn.Linear(256, classes)),
    ]
    return interval_weights_(nn.Sequential(*layers))


def interval_weights_(model: nn.Module) -> nn.Module:
    """Draw weights of deviation sqrt(2 pi) / fan-in, which keeps the width of the bounds alike over the layers."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2 * math.pi) / layer.weight[0].numel())
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
