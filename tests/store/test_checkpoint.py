"""Checkpoints come back exactly, and the newest are kept."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.store.checkpoint import newest_checkpoint, read_checkpoint, verify_checkpoint, write_checkpoint
from tests.refused import refused
from tests.store.checkpoints import names, same, tensors, write

STATE: dict[str, Any] = {"epoch": 3, "eps": 8 / 255, "best": None, "nested": {"list": [1, True, "θ", -0.0, 5e-324]}}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1 / 3, -0.0, math.nan, math.inf, 1e-45]),
        torch.tensor([1 / 3, 5e-324, -math.inf], dtype=torch.float64),
        torch.tensor([2**63 - 1, -(2**63)]),
        torch.arange(-128, 128).to(torch.int8),
        torch.arange(256).to(torch.uint8),
        torch.tensor([True, False]),
        torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
        torch.randn(5, generator=torch.Generator().manual_seed(0)).half(),
        torch.tensor(math.pi),
        torch.tensor(7),
        torch.empty(0),
        torch.empty(3, 0, 2, dtype=torch.float64),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[2:9:3],
        torch.ones(1).expand(5),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([1 + 2j]).conj(),
    ],
    ids=lambda t: f"{str(t.dtype)[6:]}-{tuple(t.shape)}",
)
def test_tensors_come_back_bit_by_bit(tmp_path: Path, tensor: Tensor) -> None:
    write_checkpoint(tmp_path, "last-1", {"x": {"t": tensor}}, {})
    found = newest_checkpoint(tmp_path, "last")[0].tensors["x"]["t"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    expected = tensor.detach().resolve_conj().contiguous()
    if expected.numel() and expected.dim():
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    else:
        assert found.tolist() == tensor.tolist()


def test_tensors_that_share_memory_come_back_apart(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    group = {"whole": base, "same": base, "head": base[:4], "tail": base[6:]}
    write_checkpoint(tmp_path, "last-1", {"x": group, "empty": {}}, {})
    found = newest_checkpoint(tmp_path, "last")[0].tensors
    assert same(found, {"x": group, "empty": {}})
    found["x"]["whole"].zero_()
    assert found["x"]["same"].tolist() == base.tolist()
    assert base[1] == 1


def test_state_comes_back_exactly(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", "last-0000007", tensors(), STATE)
    found, skipped = newest_checkpoint(path.parent, "last")
    assert found.path == path
    assert repr(found.state) == repr(dict(sorted(STATE.items())))  # repr tells -0.0 from 0.0
    assert same(found.tensors, tensors())
    assert skipped == []
    assert verify_checkpoint(path) == []
    assert names(path) == ["manifest.json", "memory.safetensors", "model.safetensors"]


def test_the_manifest_is_as_documented(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    own = manifest.pop("sha256")
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    assert own == hashlib.sha256(canonical.encode()).hexdigest()
    assert (manifest["format"], manifest["version"], manifest["state"]) == ("sihg-checkpoint", 1, {"step": 1})
    for file, about in manifest["files"].items():
        data = (path / file).read_bytes()
        assert about == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"a": {"loss": math.nan}}, "state.a.loss"),
        ({"a": [0, -math.inf]}, "state.a[1]"),
        ({"a": (1, 2)}, "state.a"),
        ({"a": torch.ones(1)}, "state.a"),
        ({"a": {1: 2}}, "state.a"),
    ],
)
def test_a_state_that_json_would_change_is_refused(tmp_path: Path, state: dict[str, Any], name: str) -> None:
    with refused("checkpoint-state", name=name):
        write_checkpoint(tmp_path, "last-1", {}, state)
    assert names(tmp_path) == []


def test_names_and_tensors_that_cannot_be_files_are_refused(tmp_path: Path) -> None:
    for name, key in [("../last-1", "x"), (".last-1", "x"), ("last-1", "a/b"), ("last-1", ""), ("last-1\n", "x")]:
        with refused("checkpoint-name"):
            write_checkpoint(tmp_path, name, {key: {}}, {})
    with refused("checkpoint-keep", keep=0):
        write(tmp_path, 1, keep=0)
    for bad in (torch.ones(2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex128)):
        with refused("checkpoint-tensors", group="x"):
            write_checkpoint(tmp_path, "last-1", {"x": {"t": bad}}, {})
    assert names(tmp_path) == []


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    for number in (8, 9, 10, 11):
        write_checkpoint(tmp_path, f"last-{number}", {}, {"step": number}, keep=2)  # as text, 8 > 11
    write_checkpoint(tmp_path, "best", {}, {})
    write_checkpoint(tmp_path, "my-last-1", {}, {})
    (tmp_path / "last-notes").mkdir()
    assert names(tmp_path) == ["best", "last-10", "last-11", "last-notes", "my-last-1"]
    assert newest_checkpoint(tmp_path, "last")[0].state == {"step": 11}
    write_checkpoint(tmp_path, "last-12", {}, {}, keep=1)
    assert names(tmp_path) == ["best", "last-12", "last-notes", "my-last-1"]


def test_an_incomplete_one_does_not_count_as_kept(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, number)
    (tmp_path / "last-0000002" / "model.safetensors").unlink()
    write(tmp_path, 3)
    assert names(tmp_path) == ["last-0000001", "last-0000002", "last-0000003"]
    write(tmp_path, 4)
    assert names(tmp_path) == ["last-0000003", "last-0000004"]


def test_after_falling_back_the_one_just_written_stays(tmp_path: Path) -> None:
    for number in (1, 9):
        write(tmp_path, number)
    (tmp_path / "last-0000009" / "manifest.json").write_text("")
    write(tmp_path, 2, keep=1)
    assert names(tmp_path) == ["last-0000002", "last-0000009"]
    found, skipped = newest_checkpoint(tmp_path, "last")
    assert found.state == {"step": 2}
    assert [s.name for s in skipped] == ["last-0000009"]


def test_the_same_name_is_replaced(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, "best", tensors(step), {"step": step})
    assert names(tmp_path) == ["best"]
    assert read_checkpoint(tmp_path / "best").state == {"step": 2}
    assert same(read_checkpoint(tmp_path / "best").tensors, tensors(2))


def test_leftovers_of_kills_are_cleared_but_not_those_of_other_prefixes(tmp_path: Path) -> None:
    for left in (".last-0000001.tmp-0a1b2c3d", ".last-0000000.gone-0a1b2c3d", ".rank1-0000001.tmp-0a1b2c3d"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "model.safetensors").write_text("half")
    write(tmp_path, 1)
    assert names(tmp_path) == [".rank1-0000001.tmp-0a1b2c3d", "last-0000001"]
