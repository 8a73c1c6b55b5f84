"""Trained weights: read from a run folder, a checkpoint or a file, and loaded into a model."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.parse import Value
from sihg.robust import models
from sihg.robust.models.opening import ForeignModel, open_foreign
from sihg.robust.models.training_tag import tag_model
from sihg.robust.training.config import REMOVED, Settings, read_run_settings
from sihg.robust.training.hub_folder import is_hub_folder, read_hub_folder
from sihg.store.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint
from sihg.store.files import status
from sihg.store.manifest import checkpoint_names
from sihg.store.run_folder import RunFolder
from sihg.store.schema import DataIdentity, check_config, convert_record

MAX_KEYS_NAMED = 3  # in an error
NEEDED = ("weights", "average")  # files of a checkpoint
TWIN = "twin"  # prefix of the second copy of a checkpoint at the end of an epoch, with the memory in files


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, and an older one was used.

    Example:
        >>> issubclass(CheckpointWarning, UserWarning)
        True
    """


class WeightsState(msgspec.Struct, frozen=True, kw_only=True):
    """What weights need of a checkpoint's state, `last` or `best`."""

    data: DataIdentity
    settings: dict[str, Value] = {}  # the first versions did not keep them


@dataclass(frozen=True)
class Weights:
    """Trained weights, their source, and the shape and number of classes that they are for, if known."""

    tensors: dict[str, Tensor]
    source: Path
    settings: Settings
    folder: RunFolder | None = None
    label: str = "weights"  # last, best, or the name of a checkpoint or a file
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    trust: bool = False  # whether the folder may name code and data although it is foreign
    foreign: ForeignModel | None = None  # what is known of a model from elsewhere

    @property
    def source_name(self) -> str:
        """Return the name of the run folder or file."""
        return str(self.source) if self.folder is None else str(self.folder.path)

    @property
    def data_dir(self) -> Path | None:
        """Return the data folder of their run."""
        return None if self.folder is None else self.folder.data_folder(trust=self.trust)

    def build(self, shape: tuple[int, ...] | None = None, classes: int | None = None) -> nn.Module:
        """Build a model for them, without loading them; the shape and classes of their run come first."""
        settings, shape, classes = self.settings, self.shape or shape, self.classes or classes
        if ":" not in settings.model and settings.model not in models.MODELS and self.foreign is None:
            raise InputError("load-needs-model", model=settings.model, path=self.source_name)
        if shape is None or classes is None:
            raise InputError("weights-shape-missing", source=self.source)
        if settings.model in models.MODELS and self.foreign is None:
            self._check_size(shape, classes)
        return models.build(settings.model, shape, classes, width=settings.width)

    def _check_size(self, shape: tuple[int, ...], classes: int) -> None:
        """Raise InputError if the model has more values than there are: its files must not decide how much memory."""
        has = sum(value.numel() for value in self.tensors.values())
        try:
            with torch.device("meta"):
                model = models.build(self.settings.model, shape, classes, width=self.settings.width)
            needs = sum(value.numel() for value in model.state_dict().values())
        except (RuntimeError, TypeError):  # more than torch can count
            needs = 2**63
        if needs > has:
            why = f"it needs {needs:,} values, they are {has:,}"
            raise InputError("weights-other-model", source=self.source, type=self.settings.model, why=why)


def read_run_weights(
    path: Path, checkpoint: str = "last", *, trust: bool = False, given: Collection[str] = ()
) -> Weights:
    """Read the weights of a run, given by its folder or by the folder of a checkpoint.

    Args:
        path: The folder.
        checkpoint: "last" or "best", if the path is that of the run.
        trust: Whether a foreign folder may name code to run and the folder of the data.
        given: Names of settings that the user gives instead of the run's, such as "model".
    """
    inside = status(path / "manifest.json") is not None
    folder = RunFolder.open(path.resolve().parents[1] if inside else path)
    settings = read_run_settings(folder, trust=trust, given=given)
    found = read_checkpoint(path, NEEDED) if inside else _newest(folder, checkpoint)
    state = convert_record(found.state, WeightsState, found.path, "use another checkpoint")
    saved = {name: value for name, value in state.settings.items() if name not in REMOVED}
    check_config(settings.deciding(), saved, found.path)
    tensors = _evaluated(found)
    label = path.resolve().name if inside else checkpoint
    return Weights(tensors, found.path, settings, folder, label, state.data.shape, len(state.data.classes), trust)


def _newest(folder: RunFolder, checkpoint: str) -> Checkpoint:
    if checkpoint not in ("last", "best"):
        raise UnknownNameError("checkpoint", checkpoint, ["last", "best"])
    if checkpoint == "best" and not checkpoint_names(folder.checkpoints, "best"):
        raise InputError("no-best-checkpoint", path=folder.path)
    twin = TWIN if checkpoint == "last" else ""
    found, skipped = newest_checkpoint(folder.checkpoints, checkpoint, NEEDED, twin=twin)
    for other in skipped:
        warnings.warn(f"skipped damaged checkpoint {other.name}: {other.reason}", CheckpointWarning, stacklevel=3)
    return found


def _evaluated(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the averaged weights if the run averages them, the weights otherwise."""
    tensors, problem = checkpoint.tensors, "its manifest lists no weights.safetensors"
    if "weights" not in tensors:
        raise InputError("checkpoint-damaged", path=checkpoint.path, problems=[problem], names=problem)
    average = tensors.get("average")
    if average is None:
        return tensors["weights"]
    return {name.removeprefix("module."): value for name, value in average.items() if name.startswith("module.")}


def read_hub_weights(path: Path, *, trust: bool = False, given: Collection[str] = ()) -> Weights:
    """Read the weights in a folder that `sihg export --to hf` wrote.

    Args:
        path: The folder.
        trust: Whether code that it names may run.
        given: Names of settings that the user gives instead of the folder's, such as "model".
    """
    config, settings, tensors = read_hub_folder(path, trust=trust, given=given)
    shape, classes = tuple(config.shape), len(config.classes)
    return Weights(tensors, path, settings, label=config.checkpoint, shape=shape, classes=classes, trust=trust)


def read_foreign_weights(
    source: Path, settings: Settings, *, key: str | None = None, download: bool = False
) -> Weights:
    """Read the weights in a file, or those of a library's model.

    Args:
        source: The file, or timm:NAME, hf:FOLDER, robustbench:NAME.
        settings: The model, the data and the ball of the evaluation.
        key: Which weights of a file that has several.
        download: Whether weights of a library may be downloaded.
    """
    foreign = open_foreign(source, weights_key=key, download=download)
    label = source.stem if foreign.module is None else str(source)
    return Weights(foreign.weights.tensors, source, settings, label=label, foreign=foreign)


def load(
    run: str | Path, *, checkpoint: str = "last", model: nn.Module | None = None, trust: bool = False
) -> nn.Module:
    """Load the trained model of a run, in evaluation mode.

    Args:
        run: The run folder, the folder of one of its checkpoints, or one that `sihg export --to hf` wrote.
        checkpoint: "last" or "best". A run that averages its weights gives the averaged ones.
        model: A model to load the weights into. A run of `fit` cannot build your model: pass one.
        trust: Whether code that the folder names, such as a model in a file, may run although no command of yours made
            the folder.
    Returns:
        The model. An evaluation of it knows the method of the run, unless other weights are loaded into it.
    Raises:
        InputError: The folder has no such checkpoint, or the weights do not fit the model.
    Example:
        >>> import sihg, tempfile, torch
        >>> x, y = torch.rand(8, 4), torch.arange(8) % 2
        >>> with tempfile.TemporaryDirectory() as run:
        ...     _ = sihg.fit(nn.Linear(4, 2), (x, y), method="natural", eps=0.1, epochs=1, out=run)
        ...     sihg.load(run, model=nn.Linear(4, 2))
        Linear(in_features=4, out_features=2, bias=True)
    """
    given = () if model is None else ("model",)
    if is_hub_folder(Path(run)):
        weights = read_hub_weights(Path(run), trust=trust, given=(*given, "data"))
    else:
        weights = read_run_weights(Path(run), checkpoint, trust=trust, given=given)
    model = model or weights.build()
    load_weights(model, weights.tensors, weights.source)
    tag_model(model, weights.settings.method.name)
    return model.eval()


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: object) -> None:
    """Load weights into a model, or raise InputError naming `source`."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        why = _shortened(str(error).split("\n")[1].strip())
        raise InputError("weights-other-model", source=source, type=type(model).__name__, why=why) from error


def _shortened(why: str) -> str:
    """Keep the first keys of torch's list of missing or unexpected keys."""
    keys, more = why.split(", "), len(why.split(", ")) - MAX_KEYS_NAMED
    return why if more <= 0 or "key(s)" not in why else f"{', '.join(keys[:MAX_KEYS_NAMED])} and {more} more"
