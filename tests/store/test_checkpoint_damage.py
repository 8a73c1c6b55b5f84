"""Every changed bit of a checkpoint is found, named, and answered with an older one."""

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from sihg.errors import InputError
from sihg.store import manifest as module
from sihg.store.checkpoint import newest_checkpoint, read_checkpoint, verify_checkpoint, write_checkpoint
from tests.refused import refused
from tests.store.checkpoints import same, tensors, write


def damaged(folder: Path, file: Path) -> None:
    """Check that the damage to a file of last-2 is seen, named, and answered with last-1."""
    problems = verify_checkpoint(folder / "last-0000002")
    assert len(problems) == 1
    assert file.name in problems[0]
    found, skipped = newest_checkpoint(folder, "last")
    assert found.state == {"step": 1}
    assert same(found.tensors, tensors(1))
    assert [(s.name, s.reason) for s in skipped] == [("last-0000002", problems[0])]
    with refused("checkpoint-damaged", path=folder / "last-0000002", problems=problems):
        read_checkpoint(folder / "last-0000002")


@pytest.mark.parametrize("how", ["flip", "cut"])
def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path, how: str) -> None:
    write(tmp_path, 1)
    files = sorted(write(tmp_path, 2).iterdir())
    draw = random.Random(0)
    for trial in range(51):
        file = files[trial % len(files)]
        whole = file.read_bytes()
        changed = bytearray(whole)
        if how == "flip":
            changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        else:
            del changed[draw.randrange(len(whole)) if trial >= len(files) else len(whole) - 1 :]
        file.write_bytes(changed)
        damaged(tmp_path, file)
        file.write_bytes(whole)
    assert verify_checkpoint(tmp_path / "last-0000002") == []


def test_every_bit_of_the_manifest_counts(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "last-1", {"x": {}}, {"lr": 1e-05, "name": "é"})
    file = path / "manifest.json"
    whole = file.read_bytes()
    assert b"1e-05" in whole  # one flip makes it 1E-05, the same number
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        manifest, problem = module._parse_manifest(bytes(changed))
        assert manifest is None
        assert problem, f"bit {bit} of {bytes(changed)!r}"


def test_reasons_tell_expected_and_found(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    file = path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert verify_checkpoint(path) == [f"model.safetensors has {len(whole) - 1} bytes, expected {len(whole)}"]
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    expected, found = (hashlib.sha256(data).hexdigest() for data in (whole, file.read_bytes()))
    assert verify_checkpoint(path) == [f"model.safetensors has the SHA-256 {found}, expected {expected}"]
    (path / "memory.safetensors").unlink()
    assert verify_checkpoint(path)[0] == "memory.safetensors is missing"
    assert len(verify_checkpoint(path)) == 2
    file.unlink()
    file.mkdir()
    assert "model.safetensors is not a regular file" in verify_checkpoint(path)
    assert verify_checkpoint(tmp_path / "nowhere") == ["manifest.json is missing"]


def test_without_a_valid_one_the_message_lists_every_reason_and_the_remedy(tmp_path: Path) -> None:
    with refused("no-checkpoint", folder=tmp_path / "nowhere", prefix="last"):
        newest_checkpoint(tmp_path / "nowhere", "last")
    for number in (1, 2):
        (write(tmp_path, number) / "manifest.json").unlink()
    with pytest.raises(InputError) as caught:
        newest_checkpoint(tmp_path, "last")
    assert str(caught.value) == (
        f"{tmp_path} has no valid checkpoint, only last-0000002 (manifest.json is missing), last-0000001 "
        "(manifest.json is missing): restore a copy of one, or start the run again"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "manifest.json has version 2, expected 1: a newer sihg may read it"),
        ({"format": "zip"}, "manifest.json is not a manifest: expected the format 'sihg-checkpoint'"),
        ({"files": {"../secret.safetensors": {"bytes": 1, "sha256": ""}}}, "not the plain name of a safetensors file"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": ""}}}, "not the plain name of a safetensors file"),
        ({"files": {"a.safetensors": {"bytes": "1", "sha256": ""}}}, "Expected `int`, got `str`"),
        ({"files": {"a.safetensors": 1}}, "Expected `object`, got `int`"),
        ({"files": []}, "Expected `object`, got `array` - at `$.files`"),
        ({"state": None}, "Expected `object`, got `null` - at `$.state`"),
    ],
)
def test_a_manifest_with_a_right_sum_and_wrong_contents_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text()) | change
    del manifest["sha256"]
    (path / "manifest.json").write_bytes(module._pretty({**manifest, "sha256": module._sum(manifest)}))
    (problem,) = verify_checkpoint(path)
    assert message in problem


@pytest.mark.parametrize("text", ["[]", "1", "[" * 100_000, '{"format": NaN}', "\x00", ""])
def test_other_text_than_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, 1)
    (path / "manifest.json").write_text(text)
    (problem,) = verify_checkpoint(path)
    assert problem.startswith("manifest.json is not ")


def test_a_right_sum_of_other_bytes_than_safetensors_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    data = b"\xff" * 100
    (path / "model.safetensors").write_bytes(data)
    files = {"model.safetensors": {"bytes": 100, "sha256": hashlib.sha256(data).hexdigest()}}
    (path / "manifest.json").write_bytes(module.manifest_bytes(files, {}))
    (problem,) = verify_checkpoint(path)
    assert problem.startswith("model.safetensors is not safetensors (")


def test_damage_to_tensors_that_nobody_asked_for_does_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / "memory.safetensors").write_bytes(b"")
    for found in (read_checkpoint(path, ["model"]), newest_checkpoint(tmp_path, "last", ["model"])[0]):
        assert same(found.tensors, {"model": tensors(1)["model"]})
    with refused("checkpoint-damaged"):
        read_checkpoint(path, ["memory"])


def test_links_out_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    shutil.move(path / "model.safetensors", tmp_path / "elsewhere")
    (path / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert verify_checkpoint(path) == ["model.safetensors is not a regular file"]


def test_each_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 1)
    opened: list[str] = []
    original = os.open

    def spy(path: Any, *args: Any, **more: Any) -> int:
        opened.append(Path(path).name)
        return original(path, *args, **more)

    monkeypatch.setattr(os, "open", spy)
    read_checkpoint(path)
    assert sorted(opened) == ["manifest.json", "memory.safetensors", "model.safetensors"]
