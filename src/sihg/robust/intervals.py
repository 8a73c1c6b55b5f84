"""Interval bounds (Gowal et al., 2018): what a network can give for all inputs of a box, layer by layer."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sihg.errors import InputError
from sihg.robust.models.normalise import Normalise
from sihg.robust.models.small_cnn import FlattenPixels

RISING = (  # no output falls as an input rises
    *(nn.Identity, nn.Flatten, FlattenPixels, Normalise),
    *(nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)


def interval(layers: list[nn.Module], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds after the last layer for inputs from `low` to `high`."""
    for layer in layers:
        if isinstance(layer, RISING):
            low, high = layer(low), layer(high)
            continue
        centre, radius = (low + high) / 2, (high - low) / 2
        if isinstance(layer, nn.Linear):
            centre, radius = layer(centre), linear(radius, layer.weight.abs())
        elif isinstance(layer, nn.Conv2d):
            centre, radius = layer(centre), layer._conv_forward(radius, layer.weight.abs(), None)
        else:
            raise InputError(f"interval bounds do not know {layer}: take a model that is a sequence of {_KNOWN}")
        low, high = centre - radius, centre + radius
    return low, high


def leads(model: nn.Module, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """For each class the most its logit can exceed the label's in the box, 0 for the label; (n, classes).

    The last layer is taken together with the difference, which is tighter than the bounds of both logits.
    """
    *below, head = flat(model)
    if not isinstance(head, nn.Linear):
        raise InputError(f"interval bounds need a last layer that is linear, got {head}: take a model that ends so")
    low, high = interval(below, low, high)
    centre, radius = (low + high) / 2, (high - low) / 2
    rows = head.weight - head.weight[y][:, None]  # (n, classes, features)
    lead = torch.einsum("ncf,nf->nc", rows, centre) + torch.einsum("ncf,nf->nc", rows.abs(), radius)
    return lead if head.bias is None else lead + head.bias - head.bias[y][:, None]


def flat(model: nn.Module) -> list[nn.Module]:
    """The layers of a sequence, sequences within it opened."""
    return [layer for part in model for layer in flat(part)] if isinstance(model, nn.Sequential) else [model]


_KNOWN = "Conv2d, Linear, " + ", ".join(kind.__name__ for kind in RISING)
