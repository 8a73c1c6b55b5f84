"""From settings to a trained model and back: the one-line forms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from sihg.errors import InputError
from sihg.robust import data as sources
from sihg.robust import models
from sihg.robust.data.samples import Samples, as_samples, held_out
from sihg.robust.settings import Settings
from sihg.robust.trainer import Trained, Trainer
from sihg.runs.folder import RunFolder
from sihg.runs.lock import locked

Tell = Callable[[str, dict[str, Any]], object]


def fit(
    model: nn.Module,
    data: Any,
    *,
    method: str = "msi-hg",
    eps: float,
    out: str | Path | None = None,
    overwrite: bool = False,
    tell: Tell = lambda _event, _about: None,
    **settings: Any,
) -> Trained:
    """Train a model of yours on data of yours; `settings` are those of `sihg train`, such as epochs, lr, tau or ramp.

    `data` is a Samples, a torch Dataset or a pair (x, y). The model is trained in place; `out` makes a run folder,
    whose training `Trainer.resume` can go on with.

    >>> x, y = torch.rand(64, 1, 8, 8), torch.arange(64) % 2
    >>> result = fit(models.build("small-cnn", (1, 8, 8), 2), (x, y), method="pgd", eps=0.1, epochs=2, steps=3)
    >>> result.stopped
    '2 epochs done'
    """
    samples = as_samples(data)
    chosen = Settings(data=samples.name, model=type(model).__name__, eps=eps, batch_size=min(128, len(samples)))
    chosen = chosen.with_values({"method": method, **settings})
    train, held = split_off(samples, chosen)
    if out is None:
        return Trainer(model, train, chosen, held_out=held, tell=tell).run()
    folder = new_folder(out, chosen, overwrite=overwrite)
    with locked(folder.path):
        return Trainer(model, train, chosen, held_out=held, folder=folder, tell=tell).run()


def prepare(
    settings: Settings, *, data_dir: str | Path | None = None, folder: RunFolder | None = None, tell: Tell
) -> Trainer:
    """The trainer of a run that is given by its settings alone."""
    samples, _ = sources.load(settings.data, None if data_dir is None else Path(data_dir))
    train, held = split_off(samples, settings)
    model = models.build(settings.model, train.shape, len(train.classes), width=settings.width, seed=settings.seed)
    return Trainer(model, train, settings, held_out=held, folder=folder, tell=tell)


def split_off(samples: Samples, settings: Settings) -> tuple[Samples, Samples | None]:
    """The samples to train on and those held out, as the settings say."""
    if settings.samples is not None and settings.samples > len(samples):
        raise InputError(
            f"cannot take {settings.samples} samples of {samples.name}, which has {len(samples)}: lower samples, or "
            "leave it out for all"
        )
    if settings.samples is not None and settings.samples < len(samples):
        samples = held_out(samples, settings.samples, seed=settings.seed)[1]
    if not settings.validation:
        return samples, None
    return held_out(samples, settings.validation, seed=settings.seed)


def new_folder(path: str | Path, settings: Settings, *, overwrite: bool = False) -> RunFolder:
    """The folder of a new run, with its config and environment."""
    folder = RunFolder.create(path, overwrite=overwrite)
    folder.write_config(settings.as_dict())
    folder.write_environment({})
    return folder
