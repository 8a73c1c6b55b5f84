"""From settings to a run that can be trained: whatever can be refused is refused here, before there is a folder."""

import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.registry import Plan, build_plan
from sihg.robust.attacks.runner import check_device, check_model, check_plans, check_range
from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import check_batch_size, steps_per_epoch
from sihg.robust.data.locations import DataWarning
from sihg.robust.data.samples import Samples, stratified_split, stratified_subset
from sihg.robust.data.sources import open_data
from sihg.robust.methods.base import Method
from sihg.robust.methods.registry import build_method
from sihg.robust.models.registry import build as build_model
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings
from sihg.robust.training.optimizer import TrainingOptimizer, build_training_optimizer


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

    def describe_samples(self) -> str:
        """Return the numbers of samples to train on and to evaluate on."""
        source = "held out" if self.settings.validate_on == "train" else "of the test set held out"
        return f"{len(self.train)} to train on, {0 if self.held_out is None else len(self.held_out)} {source}"


def prepare(settings: Settings, *, data_dir: str | Path | None = None) -> PreparedTraining:
    """Load the data, build the model and check a run that is given by its settings alone.

    Args:
        settings: The settings of the run.
        data_dir: The folder of the data files.
    Returns:
        The run, for a `Trainer` or `run_in`.
    Example:
        >>> prepare(Settings().with_values({"samples": 100, "batch_size": 30})).steps
        4
    """
    samples, test = open_data(settings.data, None if data_dir is None else Path(data_dir))
    train, held_out = split_off(samples, settings, test)
    classes = len(train.classes)
    model = build_model(settings.model, train.shape, classes, width=settings.width, seed=settings.seed)
    return preflight(model, train, settings, held_out)


def split_off(samples: Samples, settings: Settings, test: Samples | None = None) -> tuple[Samples, Samples | None]:
    """Return the samples to train on and those to evaluate on while training, as the settings say."""
    samples = stratified_subset(samples, settings.samples, settings.seed)
    if not settings.validation:
        return samples, None
    if settings.validate_on == "test":
        if test is None:
            raise InputError("no-test-set")
        return samples, stratified_subset(test, settings.validation)  # the same for every seed
    if 2 * settings.validation > len(samples):
        raise InputError(
            "validation-range", validation=settings.validation, count=len(samples), suggestion=len(samples) // 10
        )
    return stratified_split(samples, settings.validation, seed=settings.seed)


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
    train = train.when_read(bounds=settings.bounds, workers=settings.workers).settled()
    if held_out is not None:
        held_out = held_out.when_read(bounds=settings.bounds, workers=settings.workers).settled()
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
    optimizer = build_training_optimizer(
        model,
        settings.optimizer,
        settings.schedule,
        theta=settings.theta,
        epochs=settings.epochs,
        clip=settings.clip,
        ema=settings.ema,
    )
    method = method or build_method(settings.method.name, **settings.method_arguments())
    if not isinstance(method, Method):
        raise InputError("method-base", name=settings.method.name, method=type(method))
    if train.is_random and type(method).bind is not Method.bind:
        text = "what the method keeps per sample, such as its perturbation, follows none of them: use flip and crop"
        warnings.warn(f"{train.name} has random transforms of its own, and {text}", DataWarning, stacklevel=3)
    dtype = settings.memory or ("int8" if settings.norm == "linf" else "fp16")
    method.check(model, sample, accumulate=settings.accumulate, dtype=dtype)
    steps = steps_per_epoch(len(train), settings.batch_size)
    return PreparedTraining(
        model, train, held_out, settings, device, ball, plans, augment, optimizer, method, dtype, steps
    )


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
