"""What tells a model from others, beside its weights: what it is made of, its code and its plain attributes."""

import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sihg.robust.models.training_tag import ATTRIBUTE
from sihg.store.checkpoint import sha256_of_tensors
from sihg.user_code import sha256_of_code

OWN_CODE = ("sihg", "torch")  # whose versions a record has
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, np.generic)
MAX_DEPTH = 3  # of attributes in attributes
_NOT_OWN = {*vars(nn.Module()), ATTRIBUTE}  # attributes of every module


def describe_model(model: nn.Module) -> dict[str, str]:
    """Return sums of the model's structure, of its code, and of the values that no state dict has."""
    structure = f"{type(model).__module__} {model!r}"
    values = [
        f"{name} {key} {_describe(value)}"
        for name, module in model.named_modules()
        for key, value in sorted(vars(module).items())
        if key not in _NOT_OWN
    ]
    buffers = sha256_of_tensors(dict(model.named_buffers()))  # also those that are not persistent
    return {
        "model": _sum([structure]),
        "code": _sum(_describe_class(kind) for kind in _own_classes(model)),
        "values": _sum([buffers, *values]),
    }


def _own_classes(model: nn.Module) -> list[type]:
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    own = (kind for kind in kinds if kind.__module__.partition(".")[0] not in (*OWN_CODE, "builtins"))
    return sorted(own, key=lambda kind: (kind.__module__, kind.__qualname__))


def _describe_class(kind: type) -> str:
    """Return the name of a class with the sum of its code; of one in no file, as in a notebook, that of its methods."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is not None and Path(file).is_file():
        return f"{kind.__qualname__} {sha256_of_code(Path(file), kind.__module__)}"
    methods = (inspect.unwrap(value) for _, value in sorted(vars(kind).items()) if callable(value))
    return " ".join([kind.__qualname__, *(_describe_code(m.__code__) for m in methods if isinstance(m, FunctionType))])


def _describe_code(code: CodeType) -> str:
    """Return what a function does, wherever it is written."""
    constants = [_describe_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return _sum([code.co_name, code.co_code.hex(), *code.co_names, *code.co_varnames, *constants])


def _describe(value: Any, depth: int = MAX_DEPTH) -> str:
    """Return what tells a value from others, the same in another process; of what is not known, its type."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return sha256_of_tensors({"": value})
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _sum([str(value.dtype), str(value.shape), value.tobytes().hex()])
    kind = type(value).__qualname__
    if not depth:
        return kind
    parts: Iterable[Any]
    if isinstance(value, nn.Module):
        parts = [repr(value), dict(value.state_dict())]
    elif isinstance(value, FunctionType):
        enclosed = inspect.getclosurevars(value).nonlocals
        parts = [_describe_code(value.__code__), value.__defaults__, value.__kwdefaults__, enclosed]
    elif isinstance(value, MethodType):
        parts = [value.__func__]
    elif isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, Mapping):
        parts = [item for key in value for item in (str(key), value[key])]
    elif isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, set | frozenset):
        parts = sorted(_describe(item, depth - 1) for item in value)
    else:
        own = {} if isinstance(value, type) else getattr(value, "__dict__", {})
        parts = [getattr(value, "__qualname__", ""), *own.items()]
    return _sum([kind, *(_describe(part, depth - 1) for part in parts)])


def _sum(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
