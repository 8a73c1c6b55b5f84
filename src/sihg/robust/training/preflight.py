"""From settings to a run that can be trained: whatever can be refused is refused here, before there is a folder."""

import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sihg.core.processes import Processes, check_lanes
from sihg.errors import InputError
from sihg.robust.attacks.input_checks import check_device, check_model, check_plans, check_range
from sihg.robust.attacks.registry import Plan, build_plan
from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import check_batch_size, epoch_order, steps_per_epoch
from sihg.robust.data.locations import DataWarning
from sihg.robust.data.samples import Samples, stratified_split, stratified_subset
from sihg.robust.data.sources import open_data
from sihg.robust.gradients import cross_entropy_sum, inner_mode, input_gradient
from sihg.robust.methods.base import Method
from sihg.robust.methods.registry import build_method
from sihg.robust.models.registry import build as build_model
from sihg.robust.precision import choose_format, number_formats
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings
from sihg.robust.training.optimizer import TrainingOptimizer, build_training_optimizer

MAX_SORTED = 10**7  # samples, over all epochs, that are put in order to find the smallest batch of a lane


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
    remarks: tuple[str, ...] = ()  # what was decided here, for the user to see

    def with_formats_of(self, processes: Processes) -> "PreparedTraining":
        """Return the run with the number formats that the first process has chosen: `auto` is measured."""
        names = ("precision", "train_precision")
        found = processes.gather({name: getattr(self.settings, name) for name in names})[0]
        return replace(self, settings=self.settings.with_values(found))

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
    check_lanes(settings.lanes)
    train = train.when_read(bounds=settings.bounds, workers=settings.workers).settled()
    if held_out is not None:
        held_out = held_out.when_read(bounds=settings.bounds, workers=settings.workers).settled()
    device = check_device(settings.device)
    model = model.to(device)
    check_model(model, train, as_stored=True)
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
    method.check(model, sample, dtype=dtype)
    steps = steps_per_epoch(len(train), settings.batch_size)
    settings, remarks = _resolve_formats(model, train, settings)
    return PreparedTraining(
        model, train, held_out, settings, device, ball, plans, augment, optimizer, method, dtype, steps, remarks
    )


def _resolve_formats(model: nn.Module, train: Samples, settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Replace each `auto` among the number formats by what is faster for this model and batch; and say why."""
    fields = [name for name in ("precision", "train_precision") if getattr(settings, name) == "auto"]
    if not fields:
        return settings, ()
    rows = slice(min(len(train), -(-settings.batch_size // settings.lanes)))
    x, y = train.floats(rows).to(settings.device), train.y[rows].to(settings.device)
    probed = model if x.device.type == "cpu" else deepcopy(model)  # on a CPU a forked process runs it

    def ascend_once(name: str) -> None:
        probed.train()
        with number_formats(probed, ascent=name), inner_mode(probed, "batch"):
            input_gradient(probed, x, y)

    def train_once(name: str) -> None:
        probed.train()
        with number_formats(probed, training=name):
            cross_entropy_sum(probed(x), y).backward()

    passes = {"precision": ascend_once, "train_precision": train_once}
    found = {field: choose_format(passes[field], x.device.type) for field in fields}
    remarks = tuple(f"{field}: {choice.name} ({choice.reason})" for field, choice in found.items())
    return settings.with_values({field: choice.name for field, choice in found.items()}), remarks


def _check_smallest_batch(model: nn.Module, sample: Tensor, n: int, settings: Settings) -> None:
    """Raise InputError if batch normalisation would get a single value per channel in some batch of a lane."""
    if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return
    size, lanes = settings.batch_size, settings.lanes
    if _fewest_rows(n, settings) > 1:
        return
    try:
        with torch.no_grad(), torch.random.fork_rng([sample.device] if sample.is_cuda else []):
            deepcopy(model).train()(sample)
    except ValueError as error:
        if "per channel" not in str(error):
            raise
        raise InputError("batch-too-small", samples=n, batch_size=size, lanes=lanes) from error


def _fewest_rows(n: int, settings: Settings) -> int:
    """Return the fewest samples, but not none, that a lane has in a batch of the run."""
    size, lanes = settings.batch_size, settings.lanes
    if lanes == 1:
        return n % size or min(size, n)
    fewest = size
    for epoch in range(settings.epochs if settings.epochs * n <= MAX_SORTED else 0):
        places = epoch_order(n, settings.seed, epoch)
        step = torch.arange(n) // size
        counts = (step * lanes + places % lanes).bincount()
        fewest = min(fewest, int(counts[counts > 0].min()))
    return fewest
