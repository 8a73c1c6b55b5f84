"""Split nested states, such as those of optimisers, into JSON and tensors, as checkpoints keep them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from sihg.errors import InputError
from sihg.store.files import Json

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "bool | int | float | str | Tensor | list[State] | tuple[State, ...] | Mapping[Any, State] | None"


def flatten_state(tree: State) -> tuple[Json, "dict[str, Tensor]"]:
    """Return a nested state as JSON in which names stand for tensors, and the tensors by name.

    >>> flatten_state({"lr": 0.1, "betas": (0.9, 0.99)})
    ({'kind': 'dict', 'value': [['lr', 0.1], ['betas', {'kind': 'tuple', 'value': [0.9, 0.99]}]]}, {})
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(tree, "", tensors), tensors


def unflatten_state(tree: Json, tensors: "Mapping[str, Tensor]") -> Any:
    """Return the state that `flatten_state` was given, with the tensors themselves.

    >>> unflatten_state(*flatten_state({0: (1, [None])}))
    {0: (1, [None])}
    """
    if isinstance(tree, list):
        return [unflatten_state(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    value: Any = tree["value"]
    if tree["kind"] == "tensor":
        return tensors[value]
    if tree["kind"] == "tuple":
        return tuple(unflatten_state(item, tensors) for item in value)
    return {key: unflatten_state(item, tensors) for key, item in value}


def _flatten(tree: State, path: str, tensors: "dict[str, Tensor]") -> Json:
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, Mapping):
        if bad := [key for key in tree if not isinstance(key, str | int | float)]:
            raise InputError("state-key", path=path, place=path or "the state", bad=bad[0])
        pairs: list[Json] = [[key, _flatten(item, f"{path}/{key}", tensors)] for key, item in tree.items()]
        return {"kind": "dict", "value": pairs}
    if isinstance(tree, list | tuple):
        items = [_flatten(item, f"{path}/{i}", tensors) for i, item in enumerate(tree)]
        return items if isinstance(tree, list) else {"kind": "tuple", "value": items}
    if hasattr(tree, "untyped_storage"):  # a tensor; asking so needs no torch
        name = path if path not in tensors else f"{path}#{len(tensors)}"  # as for {"a": {"b": t}, "a/b": t}
        tensors[name] = tree
        return {"kind": "tensor", "value": name}
    raise InputError("state-type", path=path, place=path or "the state", type=type(tree).__name__)
