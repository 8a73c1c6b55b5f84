"""Checkpoints: exact, whole or absent, and honest about a changed bit."""

import errno
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.store import checkpoint as module
from sihg.store.checkpoint import newest_checkpoint, read_checkpoint, verify_checkpoint, write_checkpoint

STATE: dict[str, Any] = {"epoch": 3, "eps": 8 / 255, "best": None, "nested": {"list": [1, True, "θ", -0.0, 5e-324]}}


def tensors(seed: int = 0) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weights = {"w": torch.randn(7, 5, generator=generator), "b": torch.randn(3, generator=generator).double()}
    return {"model": weights, "memory": {"rows": torch.randint(-127, 127, (40,), generator=generator).to(torch.int8)}}


def write(folder: Path, number: int, **more: Any) -> Path:
    return write_checkpoint(folder, f"last-{number:07d}", tensors(number), {"step": number}, **more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same(a: dict[str, dict[str, Tensor]], b: dict[str, dict[str, Tensor]]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].keys() == b[k].keys() and all(torch.equal(a[k][n], b[k][n]) for n in a[k]) for k in a
    )


# ---- the way there and back


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
    path = write_checkpoint(tmp_path / "new" / "checkpoints", "last-0000007", tensors(), STATE)
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
    ("state", "message"),
    [
        ({"a": {"loss": math.nan}}, r"state\.a\.loss is nan, which JSON cannot hold"),
        ({"a": [0, -math.inf]}, r"state\.a\[1\] is -inf"),
        ({"a": (1, 2)}, r"state\.a is a tuple, \(1, 2\): a state holds only JSON"),
        ({"a": torch.ones(1)}, r"state\.a is a Tensor, .*: a state holds only JSON, tensors go apart"),
        ({"a": {1: 2}}, r"state\.a has the key 1 of type int: use a string"),
    ],
)
def test_a_state_that_json_would_change_is_refused(tmp_path: Path, state: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_checkpoint(tmp_path, "last-1", {}, state)
    assert names(tmp_path) == []


def test_names_and_tensors_that_cannot_be_files_are_refused(tmp_path: Path) -> None:
    for name, key in [("../last-1", "x"), (".last-1", "x"), ("last-1", "a/b"), ("last-1", ""), ("last-1\n", "x")]:
        with pytest.raises(InputError, match="cannot name a checkpoint or its file: use letters"):
            write_checkpoint(tmp_path, name, {key: {}}, {})
    with pytest.raises(InputError, match="keep must be at least 1, got 0"):
        write(tmp_path, 1, keep=0)
    for bad in (torch.ones(2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex128)):
        with pytest.raises(InputError, match=r"the tensors 'x' cannot be saved \(.+\): give dense tensors"):
            write_checkpoint(tmp_path, "last-1", {"x": {"t": bad}}, {})
    assert names(tmp_path) == []


# ---- which are kept


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


# ---- damage


def damaged(folder: Path, file: Path) -> None:
    """Check that the damage to a file of last-2 is seen, named, and answered with last-1."""
    problems = verify_checkpoint(folder / "last-0000002")
    assert len(problems) == 1
    assert file.name in problems[0]
    found, skipped = newest_checkpoint(folder, "last")
    assert found.state == {"step": 1}
    assert same(found.tensors, tensors(1))
    assert [(s.name, s.reason) for s in skipped] == [("last-0000002", problems[0])]
    with pytest.raises(InputError, match=rf"last-0000002 is not a whole checkpoint \(.*{file.name}"):
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
        assert module._manifest_problem(*parsed(bytes(changed))), f"bit {bit} of {bytes(changed)!r}"


def parsed(data: bytes) -> tuple[Any, bytes]:
    try:
        return json.loads(data), data
    except ValueError:
        return None, data


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
    assert "model.safetensors is not a plain file" in verify_checkpoint(path)
    assert verify_checkpoint(tmp_path / "nowhere") == ["manifest.json is missing"]


def test_without_a_valid_one_every_reason_and_the_remedy_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no checkpoint last-NUMBER: start the run anew"):
        newest_checkpoint(tmp_path / "nowhere", "last")
    for number in (1, 2):
        (write(tmp_path, number) / "manifest.json").unlink()
    with pytest.raises(InputError) as caught:
        newest_checkpoint(tmp_path, "last")
    assert str(caught.value) == (
        f"{tmp_path} has no valid checkpoint, only last-0000002 (manifest.json is missing), last-0000001 "
        "(manifest.json is missing): put back a copy of one, or start the run anew"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "manifest.json has version 2, expected 1: a newer sihg may read it"),
        ({"format": "zip"}, "manifest.json is not a manifest: expected the format 'sihg-checkpoint'"),
        ({"files": {"../secret.safetensors": {"bytes": 1, "sha256": ""}}}, "not the plain name of a safetensors file"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": ""}}}, "not the plain name of a safetensors file"),
        ({"files": {"a.safetensors": {"bytes": "1", "sha256": ""}}}, "gives no size or no SHA-256 of a.safetensors"),
        ({"files": {"a.safetensors": 1}}, "gives no size or no SHA-256 of a.safetensors"),
        ({"files": []}, "lists no files or no state"),
        ({"state": None}, "lists no files or no state"),
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
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, 1)
    (path / "manifest.json").write_text(text)
    (problem,) = verify_checkpoint(path)
    assert problem.startswith("manifest.json is not ")


def test_a_right_sum_of_what_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    data = b"\xff" * 100
    (path / "model.safetensors").write_bytes(data)
    files = {"model.safetensors": {"bytes": 100, "sha256": hashlib.sha256(data).hexdigest()}}
    (path / "manifest.json").write_bytes(module._manifest(files, {}))
    (problem,) = verify_checkpoint(path)
    assert problem.startswith("model.safetensors is not safetensors (")


def test_links_out_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    shutil.move(path / "model.safetensors", tmp_path / "elsewhere")
    (path / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert verify_checkpoint(path) == ["model.safetensors is not a plain file"]


def test_each_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 1)
    opened: list[str] = []
    original = Path.open

    def spy(self: Path, *args: Any, **more: Any) -> Any:
        opened.append(self.name)
        return original(self, *args, **more)

    monkeypatch.setattr(Path, "open", spy)
    read_checkpoint(path)
    assert sorted(opened) == ["manifest.json", "memory.safetensors", "model.safetensors"]


# ---- failures and kills while writing


@pytest.mark.parametrize("name", ["last-0000002", "last-0000001"])  # a new one, and one in the place of another
@pytest.mark.parametrize(("what", "times"), [("fsync", 4), ("replace", 1), ("mkdir", 1)])
def test_a_full_disk_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str, times: int
) -> None:
    write(tmp_path, 1)
    original = getattr(os, what)
    for nth in range(times):
        calls = iter(range(100))

        def fail(*args: Any, calls: Any = calls, nth: int = nth, **more: Any) -> Any:
            if next(calls) == nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, what, fail)
            with pytest.raises(
                InputError, match=rf"cannot write checkpoint {name} in {tmp_path} \(No space left on device\): free"
            ):
                write_checkpoint(tmp_path, name, tensors(2), {"step": 2})
        assert names(tmp_path) == ["last-0000001"]
        assert newest_checkpoint(tmp_path, "last")[0].state == {"step": 1}


def test_a_failing_second_rename_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)
    original = os.replace

    def fail(source: Any, target: Any) -> None:
        if ".tmp-" in str(source):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        original(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="Read-only file system"):
        write_checkpoint(tmp_path, "last-0000001", tensors(2), {"step": 2})
    assert names(tmp_path) == ["last-0000001"]
    assert read_checkpoint(tmp_path / "last-0000001").state == {"step": 1}


def test_an_old_one_that_cannot_be_removed_does_not_fail_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    with monkeypatch.context() as patch:
        original = os.replace

        def fail(source: Any, target: Any) -> None:
            if ".gone-" in str(target):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            original(source, target)

        patch.setattr(os, "replace", fail)
        write(tmp_path, 2, keep=1)
    assert newest_checkpoint(tmp_path, "last")[0].state == {"step": 2}
    write(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["last-0000003"]


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write checkpoint last-0000001 in .*file"):
        write(tmp_path / "file", 1)


LIMITED = """
import resource, sys, torch
from sihg.errors import InputError
from sihg.store.checkpoint import write_checkpoint
write_checkpoint(sys.argv[1], "last-1", {"model": {"w": torch.zeros(10)}}, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try: write_checkpoint(sys.argv[1], "last-2", {"model": {"w": torch.zeros(10)}, "memory": {"w": torch.zeros(9999)}}, {})
except InputError as error: print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits there")
def test_a_real_limit_of_the_system_leaves_the_older_one(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"cannot write checkpoint last-2 in {tmp_path} (File too large): free the place")
    assert names(tmp_path) == ["last-1"]
    assert verify_checkpoint(tmp_path / "last-1") == []


# Kills itself with SIGKILL before the n-th change to the disk, for every n, each time in a fresh copy of a folder.
KILLED = """
import os, pathlib, shutil, signal, sys, torch
from sihg.store.checkpoint import write_checkpoint
root, name = pathlib.Path(sys.argv[1]), sys.argv[2]
for n in range(1000):
    folder = root / f"killed-{n:03d}"
    shutil.copytree(root / "start", folder)
    child = os.fork()
    if not child:
        left = [n]
        def counted(original):
            def call(*args, **more):
                if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return original(*args, **more)
            return call
        for what in ("mkdir", "fsync", "replace", "unlink", "rmdir"): setattr(os, what, counted(getattr(os, what)))
        write_checkpoint(folder, name, {"model": {"w": torch.full((5,), 9.0)}, "memory": {}}, {"step": 9})
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0: break
    assert n < 999
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")
@pytest.mark.parametrize("name", ["last-0000003", "last-0000002"])  # a new one, and one in the place of another
def test_kill_9_at_any_moment_leaves_a_valid_one(tmp_path: Path, name: str) -> None:
    for number in (1, 2):
        write(tmp_path / "start", number)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), name], check=True)
    killed = sorted(tmp_path.glob("killed-*"))
    steps = []
    for folder in killed:
        found, skipped = newest_checkpoint(folder, "last")
        steps.append(found.state["step"])
        assert skipped == []
        if steps[-1] == 2:
            assert same(found.tensors, tensors(2))
        for path in folder.glob("last-*"):
            assert verify_checkpoint(path) == []
        write(folder, 4)  # the run goes on, and what the kill left goes away
        assert names(folder) == [name if steps[-1] == 9 else "last-0000002", "last-0000004"]
        assert newest_checkpoint(folder, "last")[0].state == {"step": 4}
    assert len(killed) > 10
    assert steps == sorted(steps)
    assert set(steps) == {2, 9}


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "best", tensors(1), {"step": 1})
    (tmp_path / "best").rename(tmp_path / ".best.old-0a1b2c3d")
    assert read_checkpoint(tmp_path / "best").state == {"step": 1}
    assert verify_checkpoint(tmp_path / "best") == []
    with pytest.raises(InputError, match="cannot be saved"):
        write_checkpoint(tmp_path, "best", {"x": {"t": torch.ones(2).to_sparse()}}, {})
    assert names(tmp_path) == ["best"]
    assert read_checkpoint(tmp_path / "best").state == {"step": 1}


def test_an_interrupt_while_writing_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)
    before = signal.getsignal(signal.SIGINT)

    def interrupt(_handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, 2)
    assert names(tmp_path) == ["last-0000001"]
    assert signal.getsignal(signal.SIGINT) is before
