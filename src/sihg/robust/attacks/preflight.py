"""Refuse a model, samples or device that cannot be attacked, before the first attack takes its time."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import device_of
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import evaluation_mode
from sihg.robust.threat import Ball

HALF_PRECISION = (torch.float16, torch.bfloat16)
ROWS_PER_LOOK = 4096  # samples converted to floats at once


def check_range(samples: Samples, ball: Ball) -> None:
    """Raise InputError if eps is in another unit than the data, or samples lie outside the bounds."""
    ball.check_scale(samples.x)
    for first in range(0, len(samples) if ball.bounds is not None else 0, ROWS_PER_LOOK):
        ball.around(samples.floats(slice(first, first + ROWS_PER_LOOK)))


def check_plans(model: nn.Module, samples: Samples, plans: Mapping[str, Plan]) -> None:
    """Raise InputError if one of the attacks cannot attack this model."""
    x = samples.floats(slice(0, 1)).to(device_of(model))
    for attack in (attack for plan in plans.values() for attack in plan.values()):
        attack.check(model, x)


def check_model(model: nn.Module, samples: Samples) -> None:
    """Raise InputError unless the model maps a sample to at least as many logits as there are classes."""
    x = samples.floats(slice(0, 1)).to(device_of(model)).clone()
    try:
        with evaluation_mode(model), torch.no_grad():
            out = model(x)
    except InputError:
        raise
    except Exception as error:
        raise _refused_samples(model, samples, x, error) from error
    if not x.is_inference() and x._version:  # the version counts changes in place
        raise InputError("model-changes-input")
    shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    name, classes = samples.name, len(samples.classes)
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 1:
        raise InputError("output-shape", name=name, classes=classes, shape=shape)
    dtype, outputs = out.dtype, out.shape[1]
    if not out.is_floating_point():
        raise InputError("logits-dtype", dtype=dtype)
    if outputs < classes:
        row = int(samples.y.argmax())
        label = int(samples.y[row])
        raise InputError("too-few-outputs", name=name, classes=classes, row=row, label=label, outputs=outputs)


def _refused_samples(model: nn.Module, samples: Samples, x: Tensor, error: Exception) -> InputError:
    why = (str(error) or repr(error)).splitlines()[0]
    half = next((value.dtype for value in model.parameters() if value.dtype in HALF_PRECISION), None)
    remedy = "give it data of its size and type" if half is None else f"it is {half}, use model.float()"
    shape, dtype = samples.shape, x.dtype
    return InputError("model-refuses-samples", shape=shape, dtype=dtype, why=why, remedy=remedy)


def check_device(name: str) -> str:
    """Return the name of a device, or raise InputError if torch cannot use it here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError("device-unavailable", name=name, why=why) from error
    return name
