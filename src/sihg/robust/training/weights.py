"""Trained weights: out of a run folder, one of its checkpoints or a file, into a model."""

import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.robust import models
from sihg.robust.training.config import Settings, read_run_settings
from sihg.store.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint
from sihg.store.run_folder import RunFolder

NAMED = 3  # keys that an error names
NEEDED = ("weights", "average")  # of what a checkpoint holds
SUFFIXES = (".safetensors", ".pt", ".pth")


class CheckpointWarning(UserWarning):
    """A checkpoint that is damaged, so that an older one was taken."""


@dataclass(frozen=True)
class Weights:
    """Trained weights, where they come from, and the shape and number of classes they are for, if that is known."""

    tensors: dict[str, Tensor]
    source: Path
    settings: Settings
    folder: RunFolder | None = None
    label: str = "weights"  # last, best, or the name of a checkpoint or a file
    shape: tuple[int, ...] | None = None
    classes: int | None = None

    @property
    def source_name(self) -> str:
        """What to call them beside others."""
        return str(self.source) if self.folder is None else str(self.folder.path)

    @property
    def data_dir(self) -> Path | None:
        """Where their run found its data."""
        return None if self.folder is None else self.folder.data_folder()

    def build(self, shape: tuple[int, ...] | None = None, classes: int | None = None) -> nn.Module:
        """A model for them, not yet filled, for the shape and the classes they were trained for, or those given."""
        settings, shape, classes = self.settings, self.shape or shape, self.classes or classes
        if ":" not in settings.model and settings.model not in models.MODELS and self.folder is not None:
            raise InputError(f"{self.folder.path} has trained a {settings.model} of yours: pass one to fill, model=...")
        if shape is None or classes is None:
            raise InputError(f"{self.source} does not say what it was trained for: give the shape and the classes")
        return models.build(settings.model, shape, classes, width=settings.width)


def of_run(path: Path, checkpoint: str = "last") -> Weights:
    """The weights of a run, given by its folder or by that of one of its checkpoints."""
    inside = (path / "manifest.json").is_file()
    folder = RunFolder.open(path.resolve().parents[1] if inside else path)
    found = read_checkpoint(path, NEEDED) if inside else _newest(folder, checkpoint)
    settings = read_run_settings(folder.config)
    average, about = found.tensors.get("average"), found.state["data"]
    tensors = found.tensors["weights"] if average is None else _averaged(average)
    label = path.resolve().name if inside else checkpoint
    return Weights(tensors, found.path, settings, folder, label, tuple(about["shape"]), len(about["classes"]))


def _newest(folder: RunFolder, checkpoint: str) -> Checkpoint:
    if checkpoint not in ("last", "best"):
        raise UnknownNameError("checkpoint", checkpoint, ["last", "best"])
    if checkpoint == "best" and not any(folder.checkpoints.glob("best-*")):
        raise InputError(f"{folder.path} has no best checkpoint (validation = 0, or no epoch is done): take last")
    found, skipped = newest_checkpoint(folder.checkpoints, checkpoint, NEEDED)
    for one in skipped:
        warnings.warn(f"skipped damaged checkpoint {one.name}: {one.reason}", CheckpointWarning, stacklevel=3)
    return found


def _averaged(average: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("module."): value for name, value in average.items() if name.startswith("module.")}


def of_file(path: Path, settings: Settings) -> Weights:
    """The weights in a .safetensors file, or in a .pt or .pth file that holds nothing but tensors."""
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: give a run folder or a file of weights") from None
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} cannot be read as weights (it holds more than tensors, which is never unpickled, or is damaged): "
            "save model.state_dict() again"
        ) from error
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, KeyError) as error:
        why = (str(error) or repr(error)).splitlines()[0]
        raise InputError(f"{path} cannot be read as weights ({why}): save model.state_dict() again") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"{path} holds a {type(found).__name__}, not a state dict of tensors: save model.state_dict()")
    return Weights(found, path, settings, label=path.stem)


def load(run: str | Path, *, checkpoint: str = "last", model: nn.Module | None = None) -> nn.Module:
    """The trained model of a run, in evaluation mode: its `last` or `best` weights, averaged where the run averages.

    A run of `fit` does not know how to make your model: pass one to be filled.
    """
    weights = of_run(Path(run), checkpoint)
    model = model or weights.build()
    load_weights(model, weights.tensors, weights.source)
    return model.eval()


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: object) -> None:
    """Fill a model; `source` is named when it is another one's weights."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        why = _shortened(str(error).splitlines()[1].strip())
        raise InputError(
            f"the weights of {source} do not fit this {type(model).__name__} ({why}): give the model that was trained"
        ) from error


def _shortened(why: str) -> str:
    """Torch's list of keys that are missing or too many, after three of them."""
    keys = why.split(", ")
    return (
        why if len(keys) <= NAMED or "key(s)" not in why else f"{', '.join(keys[:NAMED])} and {len(keys) - NAMED} more"
    )
