"""A folder in the layout of the Hugging Face hub: config.json and model.safetensors. Nothing in it is unpickled."""

import json
from collections.abc import Collection
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from sihg.errors import InputError
from sihg.parse import Value
from sihg.robust.data.available_memory import max_memory
from sihg.robust.methods.registry import METHODS
from sihg.robust.training.config import Settings, code_in
from sihg.store.checkpoint import sha256_of_tensors
from sihg.store.files import read_regular

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY = "sihg"
FORMAT = 1  # of config.json
MAX_CONFIG_BYTES = 2**24


class HubConfig(msgspec.Struct, frozen=True, kw_only=True):
    """config.json: what it takes to rebuild the model and to evaluate it as it was trained."""

    library_name: str = LIBRARY
    format: int = FORMAT
    sihg_version: str
    model: str
    width: float
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    data: str
    eps: float
    norm: str
    bounds: tuple[float, float] | None
    method: str
    checkpoint: str
    weights_sha256: str  # of the tensors, as in records of evaluations
    settings: dict[str, Value]  # all of the run, by dotted name


def is_hub_folder(path: Path) -> bool:
    """Return whether a folder is one that `sihg export --to hf` wrote."""
    if not (path / CONFIG).is_file() or not (path / WEIGHTS).is_file():
        return False
    try:
        content = json.loads(read_regular(path / CONFIG, MAX_CONFIG_BYTES))
    except (OSError, ValueError, InputError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("library_name") == LIBRARY


def read_hub_folder(
    path: Path, *, trust: bool = False, given: Collection[str] = ()
) -> tuple[HubConfig, Settings, dict[str, Tensor]]:
    """Read the config, the settings that an evaluation needs, and the weights.

    Args:
        path: The folder.
        trust: Whether code that the folder names may run.
        given: Names of settings that the user gives instead of the folder's, such as "model".
    Raises:
        InputError: A file is missing or damaged, the weights are others, or the folder names code ("foreign-code").
    """
    try:
        config = msgspec.json.decode(read_regular(path / CONFIG, MAX_CONFIG_BYTES), type=HubConfig)
        tensors = load_tensors(read_regular(path / WEIGHTS, max_memory()))
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        raise InputError("hub-folder-unreadable", path=path, error=error) from error
    if config.format != FORMAT:
        raise InputError("hub-folder-format", path=path / CONFIG, format=config.format, reads=FORMAT)
    if sha256_of_tensors(tensors) != config.weights_sha256:
        raise InputError("hub-folder-weights", path=path / WEIGHTS)
    values = {name: getattr(config, name) for name in ("model", "width", "data", "eps", "norm", "bounds")}
    values |= {"method": config.method} if config.method in METHODS else {}
    settings = Settings().with_values(values)
    if not trust and (named := [text for name, text in code_in(settings).items() if name not in given]):
        raise InputError("foreign-code", folder=path, code=", ".join(named), settings=path / CONFIG)
    return config, settings, tensors
