"""Checks before an attack: of the model, the samples, the attacks and the device."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.registry import Plan
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import as_input, compute_logits, device_of
from sihg.robust.threat import Ball

HALF_PRECISION = (torch.float16, torch.bfloat16)
ROWS_PER_LOOK = 4096  # samples converted to floats at once


def check_module(model: object) -> None:
    """Raise InputError unless the model is a torch.nn.Module, which has a mode, a state and a device."""
    if not isinstance(model, nn.Module):
        raise InputError("not-a-module", type=type(model).__name__)


def check_batch(x: Tensor, y: Tensor, numbers: Tensor) -> None:
    """Raise InputError unless x is finite floats (n, ...) and y is n labels; rows are named by their numbers."""
    if x.dim() < 2 or not math.prod(x.shape[1:]):
        raise InputError("batch-shape", shape=tuple(x.shape))
    if not x.is_floating_point():
        raise InputError("batch-type", dtype=x.dtype)
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError("labels", shape=tuple(y.shape), dtype=y.dtype, count=len(x))
    if numbers.shape != x.shape[:1]:
        raise InputError("row-numbers", shape=tuple(numbers.shape), count=len(x))
    y = y.long()
    if bool((y < 0).any()):
        row = int((y < 0).nonzero()[0])
        raise InputError("label-range", row=int(numbers[row]), y=int(y[row]))
    if not bool(torch.isfinite(x).all()):
        row = int(numbers[int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])])
        raise InputError("samples-not-finite", row=row)


def load_rows(model: nn.Module, samples: Samples, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
    """Return these samples as floats of the model's type, and their labels, on the device of the model."""
    device = device_of(model)
    return as_input(model, samples.floats(rows)).to(device), samples.y[rows].to(device)


def check_range(samples: Samples, ball: Ball) -> None:
    """Raise InputError if eps is in another unit than the data, or samples lie outside the bounds.

    Samples that are not in memory are checked when they are read; a few of them are looked at now.
    """
    ball.check_scale(samples.probe())
    for first in range(0, len(samples) if ball.bounds is not None and samples.lazy is None else 0, ROWS_PER_LOOK):
        ball.around(samples.floats(slice(first, first + ROWS_PER_LOOK)))


def check_plans(model: nn.Module, samples: Samples, plans: Mapping[str, Plan]) -> None:
    """Raise InputError if one of the attacks cannot attack this model."""
    x, _ = load_rows(model, samples, slice(0, 1))
    for attack in (attack for plan in plans.values() for attack in plan.values()):
        attack.check(model, x)


def check_model(model: nn.Module, samples: Samples, *, as_stored: bool = False) -> int:
    """Return how many logits the model has; raise InputError unless it maps a sample to one for each class.

    With `as_stored`, the sample is not converted to the type of the weights: trainings take it as it is.
    """
    x = samples.floats(slice(0, 1)).to(device_of(model)) if as_stored else load_rows(model, samples, slice(0, 1))[0]
    x = x.clone()
    try:
        out = compute_logits(model, x)
    except InputError:
        raise
    except Exception as error:
        raise _refused_samples(model, samples, x, error) from error
    if not x.is_inference() and x._version:  # the version counts changes in place
        raise InputError("model-changes-input")
    name, classes = samples.name, len(samples.classes)
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 1:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError("output-shape", name=name, classes=classes, shape=shape)
    if not out.is_floating_point():
        raise InputError("logits-dtype", dtype=out.dtype)
    if out.shape[1] < classes:
        row, label = int(samples.y.argmax()), int(samples.y.max())
        raise InputError("too-few-outputs", name=name, classes=classes, row=row, label=label, outputs=out.shape[1])
    return int(out.shape[1])


def _refused_samples(model: nn.Module, samples: Samples, x: Tensor, error: Exception) -> InputError:
    why = (str(error) or repr(error)).split("\n")[0]
    half = next((value.dtype for value in model.parameters() if value.dtype in HALF_PRECISION), None)
    remedy = "give it data of its size and type" if half is None else f"it is {half}, use model.float()"
    return InputError("model-refuses-samples", shape=samples.shape, dtype=x.dtype, why=why, remedy=remedy)


def check_device(name: str) -> str:
    """Return the name of a device, or raise InputError if torch cannot use it here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError("device-unavailable", name=name, why=str(error).split("\n")[0]) from error
    return name
