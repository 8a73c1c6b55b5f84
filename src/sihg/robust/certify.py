"""Interval bounds (Gowal et al., 2018): what a network can give for all inputs of a box, layer by layer."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sihg.errors import InputError
from sihg.robust.models.normalise import Normalise
from sihg.robust.models.small_cnn import FlattenPixels
from sihg.robust.models.threshold import Threshold

RISING = (  # no output falls as an input rises
    *(nn.Identity, nn.Flatten, FlattenPixels, Normalise, Threshold),
    *(nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
REMEDY = "take a model that is an nn.Sequential of Conv2d, Linear, {}, such as small-cnn, or leave interval bounds out"


def interval(layers: list[nn.Module], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds after the last layer for inputs from `low` to `high`."""
    for layer in layers:
        falls = getattr(layer, "return_indices", False) or getattr(layer, "negative_slope", 0) < 0
        if type(layer) in RISING and not falls:
            low, high = layer(low), layer(high)
            continue
        centre, radius = (low + high) / 2, (high - low) / 2
        if isinstance(layer, nn.Linear) and _plain(layer, nn.Linear):
            centre, radius = layer(centre), linear(radius, layer.weight.abs())
        elif isinstance(layer, nn.Conv2d) and _plain(layer, nn.Conv2d):
            centre, radius = layer(centre), layer._conv_forward(radius, layer.weight.abs(), None)
        else:
            raise _unknown(layer)
        low, high = centre - radius, centre + radius
    return low, high


def worst_case_margins(model: nn.Module, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """For each class the most its logit can exceed the label's in the box, 0 for the label; (n, classes).

    The last layer is taken together with the difference, which is tighter than the bounds of both logits.
    """
    *below, head = flat(model)
    if not (isinstance(head, nn.Linear) and _plain(head, nn.Linear)):
        raise _unknown(head)
    low, high = interval(below, low, high)
    weight = head.weight
    if len(y) and int(y.max()) >= len(weight):
        raise InputError(f"there is a label {int(y.max())}, but the model has {len(weight)} outputs: they count from 0")
    logits: Tensor = head((low + high) / 2)
    spread = torch.empty_like(logits)
    for label in y.unique():
        mine = (y == label).nonzero().flatten()
        spread = spread.index_copy(0, mine, linear((high - low)[mine] / 2, (weight - weight[label]).abs()))
    return logits - logits.gather(1, y[:, None]) + spread


def flat(model: nn.Module) -> list[nn.Module]:
    """The layers of a sequence, sequences within it opened; what its forward or a hook may change is refused."""
    if any(getattr(model, hooks) for hooks in HOOKS):
        raise InputError(
            f"interval bounds do not see what the hooks of a {type(model).__name__} do: take them off, or leave "
            "interval bounds out"
        )
    if not isinstance(model, nn.Sequential):
        return [model]
    if type(model).forward is not nn.Sequential.forward or not len(model):
        raise _unknown(model)
    return [layer for part in model for layer in flat(part)]


def _plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it computes what its kind does; one whose weight is parametrised is of a class below."""
    ways = ("forward", "_conv_forward")
    own = any(getattr(type(layer), way, None) is not getattr(kind, way, None) for way in ways)
    return not own and not set(ways) & vars(layer).keys()


def _unknown(layer: nn.Module) -> InputError:
    names = ", ".join(kind.__name__ for kind in RISING)
    return InputError(f"interval bounds do not know a {type(layer).__name__}: {REMEDY.format(names)}")
