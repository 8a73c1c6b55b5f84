"""The checks before a run: whatever can be refused is refused here, once, before there is a folder."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.registry import Plan, build_plan
from sihg.robust.attacks.runner import check_device, check_model, check_plans, check_range
from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import check_batch_size, steps_per_epoch
from sihg.robust.data.samples import Samples
from sihg.robust.methods.base import Method
from sihg.robust.methods.registry import build_method
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings
from sihg.robust.training.optimizer import TrainingOptimizer, build_optimizer
from sihg.robust.training.schedules import build_schedule


@dataclass(frozen=True)
class PreparedTraining:
    """A model, data and settings that fit together, and the objects built from them. Nothing is on the disk yet."""

    model: nn.Module
    train: Samples
    held_out: Samples | None
    settings: Settings
    device: str
    ball: Ball
    plans: dict[str, Plan]  # the attacks of the held-out evaluation: natural, robust
    augment: Augment | None
    optimizer: TrainingOptimizer
    method: Method
    memory_dtype: str  # number format of the perturbation memory
    steps: int  # batches per epoch


def preflight(
    model: nn.Module, train: Samples, settings: Settings, held_out: Samples | None = None, method: Method | None = None
) -> PreparedTraining:
    """Check that a run can be trained, and build what it needs.

    Args:
        model: The model, which is moved to the device of the settings.
        train: The samples to train on.
        settings: The settings of the run.
        held_out: The samples to evaluate on after each epoch.
        method: The method (default: the one that the settings name).
    Raises:
        InputError: The model does not take the samples, or a setting does not fit the model, the data or another one.
    """
    check_batch_size(settings.batch_size, len(train))
    device = check_device(settings.device)
    model = model.to(device)
    check_model(model, train)
    sample = train.floats(slice(1)).to(device)
    _check_smallest_batch(model, sample, len(train), settings)
    ball = Ball(settings.eps, settings.norm, settings.bounds)
    check_range(train, ball)
    plans = {"natural": build_plan("natural", ball), "robust": build_plan(settings.evaluate_with, ball)}
    check_plans(model, train, plans)
    augment = Augment(settings.flip, settings.crop) if settings.flip or settings.crop else None
    if augment:
        augment.check(train.shape)
    optimizer = _build_optimizer(model, settings)
    method = method or build_method(settings.method.name, **settings.method_arguments())
    if not isinstance(method, Method):
        raise InputError("method-base", name=settings.method.name, method=type(method))
    dtype = settings.memory or ("int8" if settings.norm == "linf" else "fp16")
    method.check(model, sample, accumulate=settings.accumulate, dtype=dtype)
    steps = steps_per_epoch(len(train), settings.batch_size)
    return PreparedTraining(
        model, train, held_out, settings, device, ball, plans, augment, optimizer, method, dtype, steps
    )


def _build_optimizer(model: nn.Module, settings: Settings) -> TrainingOptimizer:
    inner = build_optimizer(model, settings.optimizer.name, settings.optimizer.options, settings.theta)
    options: dict[str, Any] = dict(settings.schedule.options)
    schedule = build_schedule(settings.schedule.name, float(inner.param_groups[0]["lr"]), settings.epochs, **options)
    return TrainingOptimizer(model, inner, schedule, clip=settings.clip, ema=settings.ema)


def _check_smallest_batch(model: nn.Module, sample: Tensor, n: int, settings: Settings) -> None:
    """Raise InputError if batch normalisation would get a single value per channel in the last batch of an epoch."""
    size, parts = settings.batch_size, settings.accumulate
    smallest = min(rows // min(parts, rows) for rows in (min(size, n), n % size or size))
    if smallest > 1 or not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return
    try:
        with torch.no_grad(), torch.random.fork_rng():
            deepcopy(model).train()(sample)
    except ValueError as error:
        if "per channel" not in str(error):
            raise
        raise InputError("batch-too-small", samples=n, batch_size=size, parts=parts) from error
