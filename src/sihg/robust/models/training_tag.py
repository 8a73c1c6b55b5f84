"""Remember on a model which method trained it, for as long as it has the parameters of then.

The tag is a plain attribute. It survives `eval`, `to`, `copy.deepcopy`, pickling and wrapping; no state dict has it.
It holds a sum of the parameters. If others are loaded, or training goes on elsewhere, the tag is not used.
"""

import hashlib

import torch
from torch import nn

from sihg.store.checkpoint import bytes_of

ATTRIBUTE = "_sihg_trained_with"


def tag_model(model: nn.Module, method: str) -> None:
    """Remember which method has trained the model."""
    model.__dict__[ATTRIBUTE] = method, _sum_of_parameters(model)


def read_tag(model: nn.Module) -> str | None:
    """Return the method that trained the model, or the only tagged module inside it; None if that is not known."""
    tagged = [(module, tag) for module in model.modules() if (tag := module.__dict__.get(ATTRIBUTE)) is not None]
    methods = {method for module, (method, known) in tagged if _sum_of_parameters(module) == known}
    return methods.pop() if len(methods) == 1 else None


def _sum_of_parameters(model: nn.Module) -> str:
    """Return the SHA-256 of the parameters in float16: the same in longer formats and on other devices."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        value = parameter.detach()
        digest.update(bytes_of(value.to(torch.float32).to(torch.float16) if value.is_floating_point() else value))
    return digest.hexdigest()
