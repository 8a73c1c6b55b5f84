"""Models of other libraries: timm:NAME, hf:FOLDER, robustbench:NAME. A library is imported when it is named.

Weights come from local files and caches; they are downloaded only if the user says so. Code is only that of the
installed library.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from sihg.errors import InputError
from sihg.parse import expand_home
from sihg.robust.data.available_memory import max_memory
from sihg.robust.models.normalise import Normalisation
from sihg.robust.models.state_dicts import fit_names, list_names, read_state_dict, read_tensors
from sihg.store.files import read_regular

TIMM_FILES = ("model.safetensors", "pytorch_model.bin")  # in a repository of the Hugging Face hub
HF_CONFIG, HF_IMAGES = "config.json", "preprocessor_config.json"
MAX_CONFIG_BYTES = 2**24
ROBUSTBENCH_FOLDER = Path("models")  # in the current folder, as RobustBench has it
ROBUSTBENCH_KIND = "cifar10/Linf"
ROBUSTBENCH_NAMES = "robustbench.github.io lists the names"
NAME = re.compile(r"\w[\w.+-]*")
UNNAMED = re.compile(r"LABEL_\d+|\d+")  # names of classes that say nothing


@dataclass(frozen=True, eq=False)
class LibraryModel:
    """A model with its weights, and what its library says about its input and its classes."""

    module: nn.Module
    normalisation: Normalisation | None = None
    size: tuple[int, int] | None = None  # of the images that it was trained on
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def is_library_model(source: str) -> bool:
    """Return whether a source begins with the name of a library that `open_library_model` knows.

    >>> is_library_model("timm:resnet18"), is_library_model("nets.py:make")
    (True, False)
    """
    return source.partition(":")[0] in _OPENERS and ":" in source


def open_library_model(source: str, *, download: bool = False) -> LibraryModel:
    """Load a model of a library with its weights; InputError says what is missing.

    Args:
        source: timm:NAME, hf:FOLDER or robustbench:NAME@DATASET/THREAT.
        download: Whether weights that are not on this machine may be downloaded.
    """
    library, _, name = source.partition(":")
    with redirect_stdout(sys.stderr):  # what libraries print must not get between our results
        return _OPENERS[library](name, download)


def build_timm(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a model of timm for samples of this shape, with new weights."""
    if len(shape) != 3:
        raise InputError("image-shape", shape=shape, name=f"timm:{name}", forms="path.py:name")
    return _create_timm(name, num_classes=classes, in_chans=shape[0])


def normalisation_of(module: nn.Module) -> Normalisation | None:
    """Return the normalisation that timm keeps with a model; None if there is none."""
    config = getattr(module, "pretrained_cfg", None)
    return _normalisation(config.get("mean"), config.get("std")) if isinstance(config, Mapping) else None


def _open_timm(name: str, download: bool) -> LibraryModel:
    module = _create_timm(name)
    config = getattr(module, "pretrained_cfg", None) or {}
    weights = read_state_dict(_find_timm_weights(name, config, download))
    fitted = fit_names(weights, module, 0)
    module.load_state_dict(fitted.tensors, strict=False)
    size = config.get("input_size")
    size = (int(size[-2]), int(size[-1])) if isinstance(size, Sequence) and len(size) == 3 else None
    return LibraryModel(module, normalisation_of(module), size, notes=(*weights.notes, *fitted.notes))


def _create_timm(name: str, **options: int) -> nn.Module:
    timm = _import("timm", "timm", f"timm:{name}")
    _check_name("timm", name, NAME, "resnet18")
    try:
        module = timm.create_model(name, pretrained=False, **options)
    except Exception as error:  # the library may raise anything
        raise _failed("timm", name, error, "timm.list_models() lists the names") from error
    return _checked(module, "timm", name)


def _find_timm_weights(name: str, config: Mapping[str, Any], download: bool) -> Path:
    hub = _import("huggingface_hub", "timm", f"timm:{name}")
    repository = config.get("hf_hub_id")
    if not isinstance(repository, str) or not repository:
        raise InputError("library-no-weights", source=f"timm:{name}")
    for file in TIMM_FILES:
        found = hub.try_to_load_from_cache(repository, file)
        if isinstance(found, str):
            return Path(found)
    if not download:
        places = f"{repository} in the cache of the Hugging Face hub"
        raise InputError("weights-not-cached", source=f"timm:{name}", places=places, remedy=_file_instead(name))
    why: Exception | None = None
    for file in TIMM_FILES:
        try:
            return Path(hub.hf_hub_download(repository, file))
        except Exception as error:  # no network, or no such file
            why = why or error
    raise InputError("library-download", source=f"timm:{name}", why=_first_line(why), remedy=_file_instead(name))


def _file_instead(name: str) -> str:
    return f"give a file of weights and --model timm:{name}"


def _open_hf(folder: str, download: bool) -> LibraryModel:
    del download  # a folder has all that is needed
    path = expand_home(folder)
    if not (path / HF_CONFIG).is_file():
        raise InputError("no-hf-model", path=path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise InputError("hf-model-pickled", path=path)
    size, limit = sum(file.stat().st_size for file in files), max_memory()
    if size > limit:
        raise InputError("weights-too-large", source=f"hf:{folder}", bytes=size, limit=limit)
    transformers = _import("transformers", "transformers", f"hf:{folder}")
    try:
        module, info = transformers.AutoModelForImageClassification.from_pretrained(
            str(path), local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # the library may raise anything
        raise InputError("hf-model-unreadable", path=path, why=_first_line(error)) from error
    lost = [*map(str, info.get("missing_keys", ())), *map(str, info.get("mismatched_keys", ()))]
    if lost:  # the library gives them random values
        raise InputError("hf-model-incomplete", path=path, count=len(lost), name=min(lost))
    module = _checked(module, "hf", folder)
    half = sorted({str(value.dtype).removeprefix("torch.") for value in module.parameters()} & {"float16", "bfloat16"})
    notes = [f"converted the weights from {', '.join(half)} to float32"] if half else []
    if unknown := sorted(map(str, info.get("unexpected_keys", ()))):
        notes.append(f"left out {len(unknown)} names that are not of the model: {list_names(unknown)}")
    normalisation, side = _read_preprocessor(path / HF_IMAGES)
    return LibraryModel(module.float(), normalisation, side, _hf_labels(module), tuple(notes))


def _hf_labels(module: nn.Module) -> tuple[str, ...]:
    names = getattr(getattr(module, "config", None), "id2label", None) or {}
    labels = tuple(str(names[key]) for key in sorted(names, key=int))
    return () if any(UNNAMED.fullmatch(label) for label in labels) else labels


def _read_preprocessor(path: Path) -> tuple[Normalisation | None, tuple[int, int] | None]:
    """Return the normalisation and the size of images that a preprocessor makes of images in [0, 1]."""
    if not path.is_file():
        return None, None
    try:
        config = json.loads(read_regular(path, MAX_CONFIG_BYTES))
        size = config.get("crop_size") if config.get("do_center_crop") else config.get("size")
        size = size if isinstance(size, Mapping) else {"height": size, "width": size}
        height, width = size.get("height"), size.get("width")
        side = (height, width) if isinstance(height, int) and isinstance(width, int) else None
        scale = 255.0 * (config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0)
        if config.get("rescale_offset"):  # values that begin below 0: another range than the means are of
            return None, side
        if config.get("do_normalize", True):
            mean, std = ([value / scale for value in config.get(key, ())] for key in ("image_mean", "image_std"))
        else:
            mean, std = [0.0], [1.0 / scale]
        return _normalisation(mean, std), side
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError("hf-model-unreadable", path=path, why=_first_line(error)) from error


def _open_robustbench(name: str, download: bool) -> LibraryModel:
    source = f"robustbench:{name}"
    name, _, kind = name.partition("@")
    dataset, _, threat = (kind or ROBUSTBENCH_KIND).partition("/")
    for part in (name, dataset, threat or "Linf"):
        _check_name("robustbench", part, NAME, "Carmon2019Unlabeled@cifar10/Linf")
    threat = threat or "Linf"
    utils = _import("robustbench.utils", "robustbench", source)
    folder = ROBUSTBENCH_FOLDER / dataset / threat
    try:
        parts = utils.all_models[utils.BenchmarkDataset(dataset)][utils.ThreatModel(threat)][name]["gdrive_id"]
    except Exception as error:  # the library may raise anything
        raise _failed("robustbench", name, error, ROBUSTBENCH_NAMES) from error
    names = [f"{name}.pt_m{i}.pt" for i in range(len(parts))] if isinstance(parts, list) else [f"{name}.pt"]
    missing = [file for file in names if not (folder / file).is_file()]
    if missing and not download:  # RobustBench would download without asking
        remedy = f"put {list_names(missing)} there"
        raise InputError("weights-not-cached", source=source, places=folder, remedy=remedy)
    files = [folder / file for file in names if file not in missing]
    for file in files:
        if (skipped := read_tensors(file)[1]) != []:  # refused before RobustBench reads it
            raise InputError("weights-not-only-tensors", path=file, what=f"holds {skipped[0]}")
    try:
        module = utils.load_model(
            model_name=name, model_dir=str(ROBUSTBENCH_FOLDER), dataset=dataset, threat_model=threat
        )
    except Exception as error:  # the library may raise anything
        raise _failed("robustbench", name, error, ROBUSTBENCH_NAMES) from error
    note = "the models of RobustBench contain their normalisation"
    return LibraryModel(_checked(module, "robustbench", name), Normalisation.parse("none"), notes=(note,))


_OPENERS: dict[str, Callable[[str, bool], LibraryModel]] = {
    "timm": _open_timm,
    "hf": _open_hf,
    "robustbench": _open_robustbench,
}


def _import(module: str, extra: str, source: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:  # such as a torchvision of another version
        package = module.partition(".")[0]
        raise InputError(
            "library-missing", source=source, package=package, why=_first_line(error), extra=extra
        ) from error


def _check_name(library: str, name: str, pattern: re.Pattern[str], example: str) -> None:
    if not pattern.fullmatch(name) or ".." in name:
        raise InputError("library-model-name", library=library, name=name, example=f"{library}:{example}")


def _checked(module: object, library: str, name: str) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise InputError("model-type", name=f"{library}:{name}", type=type(module).__name__)
    return module


def _normalisation(mean: object, std: object) -> Normalisation | None:
    sides = [tuple(float(value) for value in side) if isinstance(side, Sequence) else () for side in (mean, std)]
    return Normalisation(*sides) if all(sides) else None


def _failed(library: str, name: str, error: Exception, remedy: str) -> InputError:
    return InputError("library-model", library=library, name=name, why=_first_line(error), remedy=remedy)


def _first_line(error: BaseException | None) -> str:
    return (str(error) or repr(error)).split("\n")[0]
