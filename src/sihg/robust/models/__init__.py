"""The models by name. Each of ours is body(stem(x)) on images in [0, 1]."""

import math
from collections.abc import Callable

import torch
from torch import nn

from sihg.core.draw import generator
from sihg.errors import InputError, UnknownNameError
from sihg.robust.models.committee import Committee
from sihg.robust.models.normalise import Normalise
from sihg.robust.models.preact_resnet import preact_resnet8, preact_resnet18
from sihg.robust.models.small_cnn import small_cnn, threshold_cnn, threshold_pair
from sihg.robust.models.threshold import Threshold
from sihg.user_code import load_callable

__all__ = ["MODELS", "Committee", "Normalise", "Threshold", "build", "split"]

MODELS: dict[str, Callable[[tuple[int, int, int], int, float], nn.Module]] = {
    "small-cnn": small_cnn,
    "threshold-cnn": threshold_cnn,
    "threshold-pair": threshold_pair,
    "preact-resnet8": preact_resnet8,
    "preact-resnet18": preact_resnet18,
}


def build(name: str, shape: tuple[int, ...], classes: int, *, width: float = 1.0, seed: int = 0) -> nn.Module:
    """Make a model for samples of `shape`; its weights depend on `seed` alone, the global generator is left alone.

    `name` is one of `MODELS`, or package.module:callable or path.py:callable, called with shape=... and classes=...
    """
    if classes < 2:
        raise InputError(f"a model needs at least 2 classes, got {classes}: look at the labels of the data set")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator(seed, "model").initial_seed())  # the CPU's only
        if ":" in name:
            return _own(name, shape, classes, width)
        if name not in MODELS:
            raise UnknownNameError("model", name, [*MODELS, "package.module:callable", "path.py:callable"])
        model = MODELS[name](_image(name, shape), classes, _checked_width(width))
        # faster on a CPU, see benchmarks/channels_last.py
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def split_stem(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The stem and the body of a model, as YOPO needs them."""
    stem, body = getattr(model, "stem", None), getattr(model, "body", None)
    if isinstance(stem, nn.Module) and isinstance(body, nn.Module):
        return stem, body
    missing = " and ".join(n for n, part in (("stem", stem), ("body", body)) if not isinstance(part, nn.Module))
    raise InputError(
        f"YOPO needs a model with modules .stem (the first layer) and .body, where forward(x) = body(stem(x)), but "
        f"{type(model).__name__} has no {missing}: write it as nn.Sequential(OrderedDict(stem=..., body=...))"
    )


def _own(name: str, shape: tuple[int, ...], classes: int, width: float) -> nn.Module:
    """What a user's own callable gives."""
    if width != 1:
        raise InputError(f"width = {width} is for our own models, {name!r} is yours: set its width there")
    make = load_callable("model", name)
    try:
        model = make(shape=shape, classes=classes)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"model {name!r} cannot be built with shape={shape}, classes={classes} ({error!r}): it is called with both"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"model {name!r} gives a {type(model).__name__}: it must give a torch.nn.Module")
    return model


def _image(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < 4:
        raise InputError(
            f"{name} needs images of shape (channels, height, width) of at least 4 x 4 pixels, got shape {shape}: "
            "give the samples that shape, or name a model of your own, package.module:callable"
        )
    return shape[0], shape[1], shape[2]


def _checked_width(width: float) -> float:
    if not (math.isfinite(width) and width > 0):
        raise InputError(f"width must be finite and > 0, got {width}: 1 is the usual number of channels, 2 doubles it")
    return width
