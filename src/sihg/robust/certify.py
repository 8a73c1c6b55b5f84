"""Interval bounds (Gowal et al., 2018) of the outputs of a network for all inputs of a box, layer by layer."""

from typing import NoReturn

from torch import Tensor, nn
from torch.nn.functional import linear

from sihg.errors import InputError
from sihg.robust.models.normalise import Normalise
from sihg.robust.models.small_cnn import FlattenPixels
from sihg.robust.models.threshold import Threshold
from sihg.robust.precision import exact_float32
from sihg.robust.waits import refuse_if

MONOTONE = (  # layers whose outputs never fall as an input rises
    *(nn.Identity, nn.Flatten, FlattenPixels, Normalise, Threshold),
    *(nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
REMEDY = "take a model that is an nn.Sequential of Conv2d, Linear, {}, such as small-cnn, or leave interval bounds out"


def interval_bounds(layers: list[nn.Module], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds after the last layer for inputs from `low` to `high`."""
    for layer in layers:
        falls = getattr(layer, "return_indices", False) or getattr(layer, "negative_slope", 0) < 0
        if type(layer) in MONOTONE and _is_plain(layer, type(layer)) and not falls:
            low, high = layer(low), layer(high)
            continue
        centre, radius = (low + high) / 2, (high - low) / 2
        if isinstance(layer, nn.Linear) and _is_plain(layer, nn.Linear):
            centre, radius = layer(centre), linear(radius, layer.weight.abs())
        elif isinstance(layer, nn.Conv2d) and _is_plain(layer, nn.Conv2d):
            centre, radius = layer(centre), layer._conv_forward(radius, layer.weight.abs(), None)
        else:
            raise _unknown_layer(layer)
        low, high = centre - radius, centre + radius
    return low, high


def worst_case_margins(model: nn.Module, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """Return the most by which the logit of each class can exceed that of the label in the box, (n, classes).

    The last layer is combined with the difference of logits, which is tighter than the bounds of both logits. All is
    computed in float32, within autocast too: bounds in bfloat16 would prove nothing.
    """
    with exact_float32(low.device.type):
        return _worst_case_margins(model, low, high, y)


def _worst_case_margins(model: nn.Module, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    *below, head = flatten_layers(model)
    if not (isinstance(head, nn.Linear) and _is_plain(head, nn.Linear)):
        raise _unknown_layer(head)
    low, high = interval_bounds(below, low, high)
    weight = head.weight
    if len(y):
        refuse_if(y.max() >= len(weight), lambda: _refuse_label(int(y.max()), len(weight)))
    logits: Tensor = head((low + high) / 2)
    return logits - logits.gather(1, y[:, None]) + _spread(weight, (high - low) / 2, y)


def _spread(weight: Tensor, radius: Tensor, y: Tensor) -> Tensor:
    """Return the sums of |weight - weight of the label| radius, (n, classes)."""
    if y.device.type != "cpu":  # which labels there are, a device would be waited for
        return ((weight - weight[y][:, None]).abs() @ radius[:, :, None]).squeeze(2)
    spread = radius.new_empty(len(y), len(weight))
    for label in y.unique():
        rows = (y == label).nonzero().flatten()
        spread = spread.index_copy(0, rows, linear(radius[rows], (weight - weight[label]).abs()))
    return spread


def _refuse_label(label: int, outputs: int) -> NoReturn:
    raise InputError("certify-label-range", label=label, outputs=outputs)


def flatten_layers(model: nn.Module) -> list[nn.Module]:
    """List the layers of a sequence and of sequences in it; raise InputError for hooks and forwards of their own."""
    if any(getattr(model, hooks) for hooks in HOOKS):
        raise InputError("interval-hooks", type=type(model).__name__)
    if not isinstance(model, nn.Sequential):
        return [model]
    if not _is_plain(model, nn.Sequential) or not len(model):
        raise _unknown_layer(model)
    return [layer for part in model for layer in flatten_layers(part)]


def _is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether the layer computes what its kind does; parametrised weights make a subclass of it.

    A forward that was assigned to the layer itself may do anything before and after that of the class.
    """
    methods = ("__call__", "forward", "_conv_forward")
    changed = any(getattr(type(layer), name, None) is not getattr(kind, name, None) for name in methods)
    return not changed and not set(methods) & vars(layer).keys()


def _unknown_layer(layer: nn.Module) -> InputError:
    names = ", ".join(kind.__name__ for kind in MONOTONE)
    return InputError("interval-layer", layer=type(layer).__name__, names=REMEDY.format(names))
