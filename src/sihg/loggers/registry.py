"""Loggers by name. A logger's package is imported when the logger is made."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from sihg.errors import InputError, UnknownNameError
from sihg.loggers.base import Logger


class _Entry(NamedTuple):
    module: str  # of this room
    class_name: str
    package: str  # that it imports


LOGGERS = {  # the name is that of the extra, too
    "tensorboard": _Entry("_tensorboard", "TensorBoardLogger", "tensorboardX"),
    "wandb": _Entry("_wandb", "WandbLogger", "wandb"),
    "mlflow": _Entry("_mlflow", "MLflowLogger", "mlflow"),
    "trackio": _Entry("_trackio", "TrackioLogger", "trackio"),
}


def split_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names in a text such as "tensorboard,mlflow", or in several, each once.

    >>> split_names("tensorboard,mlflow"), split_names(["mlflow", "nets.py:Mine,mlflow"])
    (('tensorboard', 'mlflow'), ('mlflow', 'nets.py:Mine'))
    """
    texts = [names] if isinstance(names, str) else names
    return tuple(dict.fromkeys(name for text in texts for part in text.split(",") if (name := part.strip())))


def check_names(names: Sequence[str]) -> None:
    """Raise InputError for an unknown logger, or one whose package is not installed; import nothing."""
    for name in names:
        if name not in LOGGERS:
            raise UnknownNameError("logger", name, [*LOGGERS])
        if find_spec(LOGGERS[name].package) is None:
            raise InputError("logger-missing", name=name, package=LOGGERS[name].package)


def make_logger(name: str) -> Logger:
    """Import a logger with its package."""
    check_names([name])
    entry = LOGGERS[name]
    logger = getattr(import_module(f"sihg.loggers.{entry.module}"), entry.class_name)()
    assert isinstance(logger, Logger)
    return logger
