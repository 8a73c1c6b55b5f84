"""From settings to a trained model: the one-line forms."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sihg.errors import InputError
from sihg.robust import data as sources
from sihg.robust import models
from sihg.robust.data.locations import data_folder
from sihg.robust.data.samples import Samples, as_samples, stratified_split, stratified_subset
from sihg.robust.training.config import Settings
from sihg.robust.training.trainer import Trained, Trainer
from sihg.robust.training.weights import CheckpointWarning
from sihg.store.lock import locked
from sihg.store.run_folder import RunFolder

Tell = Callable[[str, dict[str, Any]], object]


def fit(
    model: nn.Module,
    data: Any,
    *,
    method: str = "msi-hg",
    eps: float,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    tell: Tell = lambda _event, _about: None,
    **settings: Any,
) -> Trained:
    """Train a model of yours on data of yours; `settings` are those of `sihg train`, such as epochs, lr, tau or ramp.

    `data` is a Samples, a torch Dataset or a pair (x, y). The model is trained in place; `out` makes a run folder, and
    `resume` goes on with the one that is there, given the same model, data and settings. `tell(event, about)` hears of
    every "step", "epoch" and "warning". Ctrl-C ends training, not your program: look at `finished` of the result.

    >>> x, y = torch.rand(64, 1, 8, 8), torch.arange(64) % 2
    >>> result = fit(models.build("small-cnn", (1, 8, 8), 2), (x, y), method="pgd", eps=0.1, epochs=2, steps=3)
    >>> result.stopped
    '2 epochs done'
    """
    samples = as_samples(data)
    chosen = Settings(
        data=f"fit:{samples.name}", model=type(model).__name__, eps=eps, batch_size=min(128, len(samples))
    )
    chosen = chosen.with_values({"method": method, **settings})
    train, held = split_off(samples, chosen)
    if resume:
        return _resumed(out, model, train, chosen, held, tell)
    if out is None:
        return Trainer(model, train, chosen, held_out=held, tell=tell).run()
    if not overwrite and (Path(out) / "config.toml").is_file():
        raise InputError(
            f"{out} already has a run: go on with resume=True, replace it with overwrite=True, or give another out"
        )
    check_free(out, overwrite=overwrite)
    # What is wrong with the data or the settings shows here, before there is a folder; mapped files need one.
    ready = Trainer(model, train, replace(chosen, memory_files=False), held_out=held, tell=tell)
    return run_in(out, ready, chosen, overwrite=overwrite)


def _resumed(
    out: str | Path | None, model: nn.Module, train: Samples, settings: Settings, held: Samples | None, tell: Tell
) -> Trained:
    if out is None:
        raise InputError("resume needs the run folder to go on with: give it as out")
    folder = RunFolder.open(out)
    with locked(folder.path):
        trainer = Trainer(model, train, settings, held_out=held, folder=folder, tell=tell)
        for text in trainer.resume():
            warnings.warn(f"skipped damaged checkpoint {text}", CheckpointWarning, stacklevel=3)
        return trainer.run()


def prepare(
    settings: Settings, *, data_dir: str | Path | None = None, folder: RunFolder | None = None, tell: Tell
) -> Trainer:
    """The trainer of a run that is given by its settings alone."""
    samples, test = sources.load(settings.data, None if data_dir is None else Path(data_dir))
    train, held = split_off(samples, settings, test)
    model = models.build(settings.model, train.shape, len(train.classes), width=settings.width, seed=settings.seed)
    return Trainer(model, train, settings, held_out=held, folder=folder, tell=tell)


def split_off(samples: Samples, settings: Settings, test: Samples | None = None) -> tuple[Samples, Samples | None]:
    """The samples to train on and those to watch, as the settings say."""
    if settings.samples is not None and settings.samples > len(samples):
        raise InputError(
            f"cannot take {settings.samples} samples of {samples.name}, which has {len(samples)}: lower samples, or "
            "leave it out for all"
        )
    if settings.samples is not None and settings.samples < len(samples):
        samples = stratified_subset(samples, settings.samples, settings.seed)
    if not settings.validation:
        return samples, None
    if settings.validate_on == "test":
        return samples, _watched(test, settings.validation)
    if 2 * settings.validation > len(samples):
        raise InputError(
            f"validation holds out {settings.validation} of {len(samples)} samples, which leaves too few to train on: "
            f"lower it, such as --validation {len(samples) // 10}"
        )
    return stratified_split(samples, settings.validation, seed=settings.seed)


def _watched(test: Samples | None, n: int) -> Samples:
    """Test samples to watch, the same ones for every seed."""
    if test is None:
        raise InputError("validate_on = test, but there are no test samples here: hold out training samples, train")
    if n > len(test):
        raise InputError(f"validation watches {n} test samples, but {test.name} has {len(test)}: lower it")
    return stratified_subset(test, n)


def check_free(out: str | Path, *, overwrite: bool) -> None:
    """Say at once that a folder is taken, before data is read; where nothing is there, nothing is made."""
    if Path(out).exists() and not overwrite:
        RunFolder.create(out)


def run_in(
    out: str | Path, ready: Trainer, settings: Settings, *, overwrite: bool = False, data_dir: Path | None = None
) -> Trained:
    """Run what a trainer without a folder has found to be right, in a folder of its own."""
    with new_run(out, settings, overwrite=overwrite, data_dir=data_dir) as folder:
        return Trainer(
            ready.model, ready.train, settings, held_out=ready.held_out, folder=folder, tell=ready.tell
        ).run()


@contextmanager
def new_run(
    out: str | Path, settings: Settings, *, overwrite: bool = False, data_dir: Path | None = None
) -> Iterator[RunFolder]:
    """The locked folder of a new run; what fails before its first checkpoint leaves nothing behind."""
    fresh = not Path(out).exists()
    folder = RunFolder.create(out, overwrite=overwrite)
    with locked(folder.path):
        RunFolder.create(out)  # looked at again, now that nobody can come between
        try:
            yield new_folder(out, settings, data_dir=data_dir)
        except Exception:
            if not any(folder.checkpoints.glob("last-*")):
                folder.clear(whole=fresh)
            raise


def new_folder(path: str | Path, settings: Settings, *, data_dir: Path | None = None) -> RunFolder:
    """The folder of a new run, with its config and environment."""
    folder = RunFolder.create(path)
    folder.write_config(settings.complete().as_dict(), settings.help_texts())
    where = data_folder(data_dir).resolve() if settings.data in sources.SOURCES else None
    folder.write_environment(threads=torch.get_num_threads(), data_folder=where)
    return folder
