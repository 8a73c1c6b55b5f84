"""Models that return their logits in a tuple, a dict or an object: find the logits, and return them alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.gradients import as_input, compute_logits, device_of, unwrap

LOGIT_KEYS = ("logits", "out", "output", "outputs")


@dataclass(frozen=True)
class Place:
    """Where the logits are in what a model returns: an attribute, a key or an index."""

    kind: str
    name: str | int

    def take(self, output: object) -> Tensor:
        """Return the logits in an output."""
        found = getattr(output, str(self.name)) if self.kind == "attribute" else output[self.name]  # type: ignore[index]
        assert isinstance(found, Tensor)
        return found

    def __str__(self) -> str:
        return f".{self.name}" if self.kind == "attribute" else f"[{self.name!r}]"


class Logits(nn.Module):
    """Return the logits of a model alone, which returns them with other things.

    Args:
        model: The model.
        place: Where its outputs have the logits.
    Example:
        >>> class Both(nn.Module):
        ...     def forward(self, x):
        ...         return x.flatten(1), x
        >>> Logits(Both(), Place("index", 0))(torch.ones(1, 1, 2)).tolist()
        [[1.0, 1.0]]
    """

    def __init__(self, model: nn.Module, place: Place) -> None:
        super().__init__()
        self.model, self.place = model, place
        self.training = model.training  # not `train`, which would change the modules of the model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, classes)."""
        return self.place.take(self.model(x))

    def extra_repr(self) -> str:
        """Show where the logits are."""
        return str(self.place)


def unwrap_outputs(model: nn.Module, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, str]:
    """Return a model that returns logits alone, and a note on it; the model itself and "" if it does so already.

    One pass over zeros tells what the model returns. If the pass fails, the model is returned: checks of the model
    say why.

    Args:
        model: A model.
        shape: The shape of a sample.
        classes: The number of classes, which tells logits from other outputs.
    Raises:
        InputError: The model returns something in which there are no logits ("no-logits").
    """
    bare = unwrap(model)
    try:
        output: object = compute_logits(bare, as_input(bare, torch.zeros(1, *shape, device=device_of(bare))))
    except Exception:  # a model may raise anything, and may do so for zeros alone
        return model, ""
    if isinstance(output, Tensor):
        return model, ""
    kind = type(output).__name__
    place = find_logits(output, classes)
    if place is None:
        raise InputError("no-logits", type=kind, keys=", ".join(LOGIT_KEYS), classes=classes)
    return Logits(bare, place), f"the model returns {kind}, of which the logits are taken: output{place}"


def find_logits(output: object, classes: int) -> Place | None:
    """Return where an output of a model has logits, (n, classes): under their name, or where the shape tells."""
    if isinstance(getattr(output, "logits", None), Tensor):
        return Place("attribute", "logits")
    if isinstance(output, Mapping):
        named = [key for key in LOGIT_KEYS if isinstance(output.get(key), Tensor)]
        fitting = [key for key, value in output.items() if _may_be_logits(value, classes)]
        key = named[0] if named else fitting[0] if len(fitting) == 1 else None
        return None if key is None else Place("key", key)
    if isinstance(output, tuple | list):
        fitting = [index for index, value in enumerate(output) if _may_be_logits(value, classes)]
        exact = [index for index in fitting if output[index].shape[1] == classes]
        index = exact[0] if exact else next(iter(fitting), None)
        return None if index is None else Place("index", index)
    return None


def _may_be_logits(value: object, classes: int) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point() and value.shape[1] >= classes
