"""Nested states, such as those of optimisers, as JSON and tensors apart, which is how checkpoints keep them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sihg.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def flatten_state(tree: Any) -> tuple[Any, "dict[str, Tensor]"]:
    """The tree as JSON with references, and the tensors they refer to; `put_together` is the way back."""
    tensors: dict[str, Tensor] = {}
    return _apart(tree, "", tensors), tensors


def unflatten_state(tree: Any, tensors: "Mapping[str, Tensor]") -> Any:
    """The tree that `taken_apart` was given."""
    if isinstance(tree, list):
        return [unflatten_state(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind, value = tree["kind"], tree["value"]
    if kind == "tensor":
        return tensors[value]
    if kind == "tuple":
        return tuple(unflatten_state(item, tensors) for item in value)
    return {key: unflatten_state(item, tensors) for key, item in value}


def _apart(tree: Any, path: str, tensors: "dict[str, Tensor]") -> Any:
    if hasattr(tree, "untyped_storage"):
        name = path if path not in tensors else f"{path}#{len(tensors)}"  # as for {"a": {"b": t}, "a/b": t}
        tensors[name] = tree
        return {"kind": "tensor", "value": name}
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str | int | float):
                raise InputError(
                    f"{path or 'the state'} has the key {key!r}, which JSON cannot hold: use numbers, texts"
                )
        items = [[key, _apart(item, f"{path}/{key}", tensors)] for key, item in tree.items()]
        return {"kind": "dict", "value": items}
    if isinstance(tree, list | tuple):
        items = [_apart(item, f"{path}/{i}", tensors) for i, item in enumerate(tree)]
        return items if isinstance(tree, list) else {"kind": "tuple", "value": items}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise InputError(
        f"{path or 'the state'} is a {type(tree).__name__}, which a checkpoint cannot keep: use numbers, texts, tensors"
    )
