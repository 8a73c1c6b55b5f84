"""State dicts from elsewhere: find the weights in what a file holds, and give them the names of a model.

Files of other programs hold weights under other names: nested beside an optimiser, with the prefix of a wrapper, in
half precision, twice because an average is kept too. Nothing is guessed in silence: each step leaves a note.
"""

import pickle
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.data.available_memory import max_memory
from sihg.robust.data.pickles import load_torch
from sihg.robust.models.normalise import Normalisation
from sihg.store.files import read_regular

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".tar")  # .tar: model.pth.tar, which is no archive
MAX_NESTING = 3  # dicts around the weights
MAX_NAMES_SHOWN = 3
USUAL_KEYS = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "params", "weights", "module")
AVERAGES = re.compile(r"(^|[._])(ema|swa|averaged?|shadow)([._]|$)")  # keys of averaged weights
NOT_WEIGHTS = re.compile(r"optim|sched|scaler")
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # parts of names
COUNTERS = ("num_batches_tracked", "n_averaged", "total_ops", "total_params")  # no model needs them to evaluate
MEANS, STDS = ("mean", "mu", "image_mean", "pixel_mean"), ("std", "sigma", "image_std", "pixel_std")
MAX_CHANNELS = 4  # of an image's normalisation
MAX_UNIT_MEAN = 2.0  # a larger mean is of pixels from 0 to 255
UNSUPPORTED = re.compile(r"Unsupported (?:global: GLOBAL|class) ([\w.]+)")  # as torch names an object that it refuses


@dataclass(frozen=True)
class StateDict:
    """The weights in a file, under the file's names, and what was done to find them."""

    tensors: dict[str, Tensor]
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FittedWeights:
    """Weights under the names of a model, the normalisation that lay beside them, and what was done."""

    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()
    normalisation: Normalisation | None = None


def read_state_dict(path: Path, key: str | None = None) -> StateDict:
    """Read the weights in a file. Only tensors are loaded, nothing else is unpickled.

    Args:
        path: A .safetensors file, or one of torch.save.
        key: Which weights, if there are several: a key of the file such as "state_dict", or the first part of names.
    """
    content, skipped = read_tensors(path)
    if (found := _find_weights(content)) == {}:
        if skipped:
            raise InputError("weights-not-only-tensors", path=path, what=f"holds {list_names(skipped)}")
        raise InputError("weights-no-state-dict", path=path, type=type(content).__name__)
    weights = _take_key(path, found, key) if key else _choose(path, found)
    _check_tensors(weights)
    left = (f"left out what is not a tensor: {list_names(skipped)}",) if skipped else ()
    return replace(weights, notes=(*weights.notes, *left))


def read_tensors(path: Path) -> tuple[object, list[str]]:
    """Read the tensors in a file and their containers, and return the classes of other objects, which are not made."""
    try:
        data = read_regular(path, max_memory())
        return (load_safetensors(data), []) if path.suffix == ".safetensors" else load_torch(data)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("weights-missing", path=path) from None
    except pickle.UnpicklingError as error:
        named = UNSUPPORTED.search(str(error))
        what = f"holds {named[1]}" if named else "is damaged or holds objects other than tensors"
        raise InputError("weights-not-only-tensors", path=path, what=what) from error
    except Exception as error:  # torch raises whatever a broken file causes
        why = (str(getattr(error, "strerror", None) or error) or repr(error)).split("\n")[0]
        raise InputError("weights-unreadable", path=path, why=why) from error


def _check_tensors(weights: StateDict) -> None:
    """Raise InputError unless all tensors are dense and fit in memory; a small file may hold a huge expanded one."""
    for name, tensor in weights.tensors.items():
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta or tensor.is_quantized:
            raise InputError("weights-not-dense", source=weights.source, name=name)
    size, limit = sum(tensor.numel() * tensor.element_size() for tensor in weights.tensors.values()), max_memory()
    if size > limit:
        raise InputError("weights-too-large", source=weights.source, bytes=size, limit=limit)


def _find_weights(content: object, place: str = "", nesting: int = 0) -> dict[str, dict[str, Tensor]]:
    """Return every dict of tensors by its place, such as "ema.module"; those of optimisers are left out."""
    if not isinstance(content, Mapping) or not content or not all(isinstance(key, str) for key in content):
        return {}
    if all(isinstance(value, Tensor) for value in content.values()):
        return {place: dict(content)}
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in content.items() if nesting < MAX_NESTING else ():
        if not NOT_WEIGHTS.search(key.lower()):
            found |= _find_weights(value, f"{place}.{key}" if place else key, nesting + 1)
    return found


def _take_key(path: Path, found: Mapping[str, dict[str, Tensor]], key: str) -> StateDict:
    if key in found:
        return StateDict(found[key], f"{path} ({key})", (f"took the weights {key!r}",))
    prefix = f"{key.rstrip('.')}."
    for tensors in found.values():
        if taken := {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}:
            return StateDict(taken, f"{path} ({key})", (f"took the {len(taken)} names that begin with {prefix!r}",))
    firsts = {name.partition(".")[0]: None for tensors in found.values() for name in tensors}
    raise InputError("weights-key", path=path, key=key, names=list_names([key for key in found if key] or list(firsts)))


def _choose(path: Path, found: Mapping[str, dict[str, Tensor]]) -> StateDict:
    """Take the weights, of several the averaged ones, as for our own runs; else those under the most usual key."""
    averaged = [key for key in found if AVERAGES.search(key.lower())]
    usual = [key for name in USUAL_KEYS for key in found if key == name]
    key = next(iter(found)) if len(found) == 1 else averaged[0] if len(averaged) == 1 else next(iter(usual), None)
    if key is None or len(averaged) > 1:
        raise InputError("weights-several", path=path, names=", ".join(found))
    if not key:
        return StateDict(found[key], str(path))
    others = ", ".join(other for other in found if other != key)
    more = f"; --weights-key takes others: {others}" if others else ""
    return StateDict(found[key], f"{path} ({key})", (f"took the weights {key!r}{more}",))


def fit_names(weights: StateDict, model: nn.Module, classes: int) -> FittedWeights:
    """Give weights the names of the model, if that makes all of them fit; raise InputError if they do not.

    A prefix is removed only if behind it the weights have all names of the model. Of several such prefixes, that of
    averaged weights is taken.

    Args:
        weights: The weights of a file.
        model: The model that they are for.
        classes: The classes of the data, for a message.
    """
    wanted = model.state_dict()
    needed = [name for name in wanted if not name.endswith(COUNTERS)]
    names = {name: name for name in weights.tensors}  # the name to fit, and that in the file
    removed = Counter[str]()
    if not (prefixes := _covering_prefixes(names, needed)):
        names, removed = _without_wrappers(names, wanted)
        prefixes = _covering_prefixes(names, needed)
    if not prefixes:
        missing = [name for name in needed if name not in names]
        unknown = [name for name in names if name not in wanted and not name.endswith(COUNTERS)]
        raise _other_model(weights, model, missing, unknown)
    averaged = [prefix for prefix in prefixes if AVERAGES.search(prefix.lower())]
    prefix = averaged[0] if len(averaged) == 1 else min(prefixes, key=len)
    fitted = {name: weights.tensors[names[prefix + name]] for name in wanted if prefix + name in names}
    notes = [f"removed {part + '.'!r} from {count} names" for part, count in removed.items()]
    if prefix:
        also = [other for other in prefixes if other != prefix]
        more = f"; --weights-key takes others: {', '.join(other.rstrip('.') or 'none' for other in also)}"
        notes.append(f"removed the prefix {prefix!r} from {len(fitted)} names{more if also else ''}")
    extra = [name for name in names if name.removeprefix(prefix) not in wanted or not name.startswith(prefix)]
    extra = [name for name in extra if not name.endswith(COUNTERS)]
    normalisation, used = _find_normalisation({name: weights.tensors[names[name]] for name in extra})
    extra = [name for name in extra if name not in used]
    if normalisation is not None:
        notes.append(f"found the normalisation {normalisation} under {list_names(used)}")
    others = [other for other in prefixes if other]
    outside = [name for name in extra if not name.startswith(prefix) or (not prefix and name.startswith(tuple(others)))]
    if unknown := [name for name in extra if name not in outside]:
        raise _other_model(weights, model, [], unknown)
    if outside:
        notes.append(f"left out {len(outside)} names that are not of the model: {list_names(outside)}")
    _check_shapes_and_types(weights, fitted, wanted, classes)
    return FittedWeights(*_to_float32(fitted, notes), normalisation)


def _covering_prefixes(names: Mapping[str, str], needed: list[str]) -> list[str]:
    """Return the prefixes behind which there are all needed names."""
    if not needed:
        return [""]
    probe = max(needed, key=len)
    ends = [name.removesuffix(probe) for name in names if name == probe or name.endswith(f".{probe}")]
    return [prefix for prefix in ends if all(prefix + name in names for name in needed)]


def _without_wrappers(names: Mapping[str, str], wanted: Mapping[str, Tensor]) -> tuple[dict[str, str], Counter[str]]:
    """Remove the parts that wrappers insert, wherever they are, unless the model has them or two names become one."""
    own = {part for name in wanted for part in name.split(".")}
    parts = [part for part in WRAPPERS if part not in own]
    cleaned, removed = {}, Counter[str]()
    for name, stored in names.items():
        kept = [part for part in name.split(".") if part not in parts]
        removed.update({part for part in name.split(".") if part in parts})
        cleaned[".".join(kept)] = stored
    return (cleaned, removed) if len(cleaned) == len(names) else (dict(names), Counter())


def _find_normalisation(tensors: Mapping[str, Tensor]) -> tuple[Normalisation | None, list[str]]:
    """Return the mean and deviation per channel that a model's own first layer kept, and their names."""
    small = {name: tensor for name, tensor in tensors.items() if 1 <= tensor.numel() <= MAX_CHANNELS}
    means = [name for name in small if name.rpartition(".")[2].lstrip("_") in MEANS]
    stds = [name for name in small if name.rpartition(".")[2].lstrip("_") in STDS]
    if len(means) != 1 or len(stds) != 1 or small[means[0]].numel() != small[stds[0]].numel():
        return None, []
    mean, std = (small[name].double().flatten() for name in (means[0], stds[0]))
    unit = 255.0 if float(mean.max()) > MAX_UNIT_MEAN else 1.0
    try:
        found = Normalisation(tuple((mean / unit).tolist()), tuple((std / unit).tolist()))
    except InputError:  # other numbers of these names, such as a deviation of 0
        return None, []
    return found, [means[0], stds[0]]


def _check_shapes_and_types(
    weights: StateDict, fitted: Mapping[str, Tensor], wanted: Mapping[str, Tensor], classes: int
) -> None:
    wrong = [name for name, tensor in fitted.items() if tensor.shape != wanted[name].shape]
    outputs = {fitted[name].shape[:1] for name in wrong}
    rest = all(fitted[name].dim() and fitted[name].shape[1:] == wanted[name].shape[1:] for name in wrong)
    if len(outputs) == 1 and rest and all(len(wanted[name]) == classes for name in wrong):
        raise InputError("weights-other-classes", source=weights.source, outputs=outputs.pop()[0], classes=classes)
    for name in wrong:
        found, shape = tuple(fitted[name].shape), tuple(wanted[name].shape)
        raise InputError("weights-other-shape", source=weights.source, name=name, found=found, shape=shape)
    for name, tensor in fitted.items():
        if wanted[name].is_floating_point() and not tensor.is_floating_point():
            raise InputError("weights-other-type", source=weights.source, name=name, dtype=tensor.dtype)


def _to_float32(tensors: dict[str, Tensor], notes: list[str]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    half = [name for name, tensor in tensors.items() if tensor.dtype in (torch.float16, torch.bfloat16)]
    kinds = ", ".join(sorted({str(tensors[name].dtype).removeprefix("torch.") for name in half}))
    notes = [*notes, f"converted {len(half)} tensors from {kinds} to float32"] if half else notes
    return {name: tensor.float() if name in half else tensor for name, tensor in tensors.items()}, tuple(notes)


def _other_model(weights: StateDict, model: nn.Module, missing: list[str], unknown: list[str]) -> InputError:
    parts = [f"missing: {list_names(missing)}"] if missing else []
    parts += [f"not in the model: {list_names(unknown)}"] if unknown else []
    return InputError("weights-other-model", source=weights.source, type=type(model).__name__, why="; ".join(parts))


def list_names(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
