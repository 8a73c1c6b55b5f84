"""Nested states become JSON and tensors, and come back unchanged."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.robust.training.optimizer import flatten_state, unflatten_state
from tests.refused import refused


def through(tree: Any) -> Any:
    """Flatten a tree, write and read it as JSON text, and unflatten it."""
    plain, tensors = flatten_state(tree)
    return unflatten_state(json.loads(json.dumps(plain, allow_nan=False)), tensors)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "nesterov": True, "name": "sgd"},
        {"param_groups": [{"params": [0, 1]}, {"params": []}]},
        {1: "a number", "1": "a text"},
        [(), [], {}, ((1,), [2])],
        {"kind": "tensor", "value": "not one of ours"},
        1e-300,
    ],
)
def test_plain_trees_come_back_as_they_were(tree: Any) -> None:
    back = through(tree)
    assert back == tree
    assert repr(back) == repr(tree)  # tuples are no lists, True is not 1


def test_tensors_come_back_themselves() -> None:
    a, b = torch.arange(3), torch.rand(2, dtype=torch.float64)
    back = through({"state": {0: {"step": a}, 1: {"step": b}}, "list": [a]})
    assert back["state"][0]["step"] is a
    assert back["state"][1]["step"] is b
    assert back["list"][0] is a
    assert through(a) is a


def test_keys_that_look_like_paths_do_not_collide() -> None:
    tree: dict[Any, Any] = {"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1), 0: torch.ones(2), "0": torch.zeros(2)}
    tensors: dict[str, Tensor]
    plain, tensors = flatten_state(tree)
    assert len(tensors) == 4
    back = unflatten_state(plain, tensors)
    assert back["a"]["b"] is tree["a"]["b"]
    assert back["a/b"] is tree["a/b"]
    assert back[0] is tree[0]
    assert back["0"] is tree["0"]


@pytest.mark.parametrize(
    "optimizer", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop", "ASGD", "Adafactor"]
)
def test_states_of_torch_optimisers(optimizer: str) -> None:
    layer = torch.nn.Linear(3, 2)
    stepped = getattr(torch.optim, optimizer)(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 3)).sum().backward()
    stepped.step()
    state = stepped.state_dict()
    back = through(state)
    assert back["param_groups"] == state["param_groups"]
    for number, entries in state["state"].items():
        for key, value in entries.items():
            assert back["state"][number][key] is value or back["state"][number][key] == value
    getattr(torch.optim, optimizer)(layer.parameters(), lr=0.1).load_state_dict(back)


def test_what_a_checkpoint_cannot_keep_is_refused() -> None:
    tree: Any
    for tree, path in (({"groups": [1, object()]}, "/groups/1"), ({1, 2}, "")):
        with refused("state-type", path=path):
            flatten_state(tree)
    with refused("state-key", path="/a"):
        flatten_state({"a": {(1, 2): 3}})
