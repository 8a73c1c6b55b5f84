"""Networks for certified training on MNIST: a pixel threshold first, weights for interval bounds (Shi et al., 2021).

python -m sihg train --model benchmarks.certified_networks:threshold_small --method ibp ...
"""

import math

from torch import nn

from sihg.robust.models.small_cnn import threshold_cnn


def threshold_small(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the small CNN behind a threshold, with these weights."""
    return interval_weights_(threshold_cnn(shape, classes))


def threshold_wide(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the same with twice the channels."""
    return interval_weights_(threshold_cnn(shape, classes, 2.0))


def interval_weights_(model: nn.Module) -> nn.Module:
    """Draw weights of deviation sqrt(2 pi) / fan-in, which keeps the width of the bounds alike over the layers."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2 * math.pi) / layer.weight[0].numel())
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
