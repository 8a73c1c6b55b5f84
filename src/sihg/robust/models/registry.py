"""Models by name, ours and a user's own. Torch is loaded when a model is built."""

import inspect
import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from sihg.errors import InputError, UnknownNameError
from sihg.user_code import FORMS, call_user_code, load_callable

if TYPE_CHECKING:
    from torch import nn

MODELS = {  # name: the module here, and its function (image shape, classes, width) -> model
    "small-cnn": ("small_cnn", "small_cnn"),
    "norm-cnn": ("small_cnn", "norm_cnn"),
    "threshold-cnn": ("small_cnn", "threshold_cnn"),
    "threshold-pair": ("small_cnn", "threshold_pair"),
    "preact-resnet8": ("preact_resnet", "preact_resnet8"),
    "preact-resnet18": ("preact_resnet", "preact_resnet18"),
}
TIMM = "timm:"
MODEL_FORMS = (*MODELS, f"{TIMM}NAME", *FORMS)  # what `build` takes


def build(name: str, shape: tuple[int, ...], classes: int, *, width: float = 1.0, seed: int = 0) -> "nn.Module":
    """Build a model for samples of `shape`. Its weights depend on `seed` alone, not on the global generator.

    Args:
        name: One of `MODELS`; `timm:NAME`, an architecture of timm; or a model of your own, `path.py:name` or
            `package.module:name`: a function or a class that is called as name(shape=shape, classes=classes) and
            returns a torch.nn.Module.
        shape: The shape of one sample, such as (1, 28, 28).
        classes: The number of outputs.
        width: Multiplies the channels of our models.
        seed: Decides the initial weights.
    Returns:
        The model, in training mode.
    Raises:
        InputError: If the model cannot be built for such samples.
    Example:
        >>> model = build("small-cnn", (1, 8, 8), 10)
        >>> sum(parameter.numel() for parameter in model.parameters())
        25866
    """
    import torch

    from sihg.core.draw import generator

    if classes < 2:
        raise InputError("too-few-classes", classes=classes)
    if name not in MODELS and ":" not in name:
        raise UnknownNameError("model", name, list(MODEL_FORMS))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator(seed, "model").initial_seed())  # the CPU's only
        if name not in MODELS:
            return _build_users_model(name, shape, classes, width)
        module, function = MODELS[name]
        make: Callable[..., nn.Module] = getattr(import_module(f"sihg.robust.models.{module}"), function)
        model = make(_check_image(name, shape), classes, _check_width(width))
        # faster on a CPU, see benchmarks/channels_last.py
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def split_stem(model: "nn.Module") -> tuple["nn.Module", "nn.Module"]:
    """Split a model at its first layer, as YOPO needs it.

    Args:
        model: A model with modules .stem and .body, where forward(x) = body(stem(x)).
    Returns:
        The stem and the body.
    Raises:
        InputError: If one of them is missing ("no-stem").
    Example:
        >>> stem, body = split_stem(build("small-cnn", (1, 8, 8), 10))
        >>> len(stem), len(body)
        (2, 6)
    """
    from torch import nn

    parts = {name: getattr(model, name, None) for name in ("stem", "body")}
    missing = [name for name, part in parts.items() if not isinstance(part, nn.Module)]
    if missing:
        raise InputError("no-stem", missing=missing, type=type(model).__name__, names=" and ".join(missing))
    return cast("nn.Module", parts["stem"]), cast("nn.Module", parts["body"])


def _build_users_model(name: str, shape: tuple[int, ...], classes: int, width: float) -> "nn.Module":
    from torch import nn

    if width != 1:
        raise InputError("width-of-user-model", width=width, name=name)
    if name.startswith(TIMM):
        from sihg.robust.models.foreign import build_timm

        return build_timm(name.removeprefix(TIMM), shape, classes)
    make = load_callable("model", name)
    model = call_user_code("model", name, make, **_accepted_arguments(name, make, shape=shape, classes=classes))
    if not isinstance(model, nn.Module):
        raise InputError("model-type", name=name, type=type(model).__name__)
    return model


def _accepted_arguments(name: str, make: Callable[..., object], **offered: object) -> dict[str, object]:
    """Return those of the offered arguments that a user's function takes; raise InputError if it needs others."""
    try:
        signature = inspect.signature(make)
    except ValueError:  # some builtins have none
        return offered
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    taken = offered if inspect.Parameter.VAR_KEYWORD in kinds else offered.keys() & signature.parameters.keys()
    arguments = {key: value for key, value in offered.items() if key in taken}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        own, function = signature.replace(return_annotation=inspect.Signature.empty), name.rpartition(":")[2]
        call = ", ".join(f"{key}={value}" for key, value in offered.items())
        raise InputError("model-arguments", name=name, own=f"{function}{own}", call=f"{function}({call})") from error
    return arguments


def _check_image(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < 4:
        raise InputError("image-shape", shape=shape, name=name, forms=FORMS[1])
    return shape[0], shape[1], shape[2]


def _check_width(width: float) -> float:
    if not (math.isfinite(width) and width > 0):
        raise InputError("width-range", width=width)
    return width
