"""Write a folder for the Hugging Face hub: model.safetensors, config.json, README.md."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
from safetensors.torch import save
from torch import Tensor

import sihg
from sihg.errors import InputError
from sihg.formats.model_card import model_card
from sihg.formats.source_run import SourceRun
from sihg.robust.training.hub_folder import CARD, CONFIG, WEIGHTS, HubConfig
from sihg.store.files import list_names, make_folder, refuse_link, status, write_bytes, write_text


def write_hub_folder(source: SourceRun, out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Write the folder; yield its files. `overwrite` replaces these three, and no other file.

    Args:
        source: The run.
        out: The folder.
        overwrite: Replace an earlier export.
    Raises:
        InputError: The folder is not empty.
    """
    if status(out) is not None and (not out.is_dir() or (list_names(out) and not overwrite)):
        raise InputError("export-exists", out=out)
    source.build()  # weights that do not fit the model are an error before anything is written
    card, config = model_card(source, out), hub_config(source)
    refuse_link(out)
    make_folder(out)
    names = {str(number): name for number, name in enumerate(config.classes)}
    about = {
        "model_type": "sihg",
        "architectures": [config.model],
        "num_labels": len(names),
        "id2label": names,
        "label2id": {name: int(number) for number, name in names.items()},
    }
    yield write_bytes(out / WEIGHTS, save(_separate(source.weights.tensors), metadata={"format": "pt"}))
    yield write_text(out / CONFIG, json.dumps({**about, **msgspec.to_builtins(config)}, indent=1) + "\n")
    yield write_text(out / CARD, card)


def hub_config(source: SourceRun) -> HubConfig:
    """Return what config.json says of a run."""
    settings = source.weights.settings
    return HubConfig(
        sihg_version=sihg.__version__,
        model=str(source.settings["model"]),
        width=settings.width,
        shape=tuple(source.data.shape),
        classes=tuple(source.data.classes),
        data=str(source.settings["data"]),
        eps=settings.eps,
        norm=settings.norm,
        bounds=settings.bounds,
        method=str(source.settings["method.name"]),
        checkpoint=source.weights.label,
        weights_sha256=source.sha256,
        settings=source.settings,
    )


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors that share no memory, as safetensors needs them."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
