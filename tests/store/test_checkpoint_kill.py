"""A full disk, an interrupt or a kill while writing leaves a valid checkpoint."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sihg.errors import InputError
from sihg.store.checkpoint import newest_checkpoint, read_checkpoint, verify_checkpoint, write_checkpoint
from tests.refused import refused
from tests.store.checkpoints import names, same, tensors, write
from tests.store.disk_calls import record_disk_calls


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
            with refused("cannot-write-checkpoint", folder=tmp_path, name=name):
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
    with refused("cannot-write-checkpoint", folder=tmp_path / "file"):
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
    assert done.stdout.startswith(f"cannot write checkpoint last-2 in {tmp_path} (File too large): make room there")
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
    with refused("checkpoint-tensors"):
        write_checkpoint(tmp_path, "best", {"x": {"t": torch.ones(2).to_sparse()}}, {})
    assert names(tmp_path) == ["best"]
    assert read_checkpoint(tmp_path / "best").state == {"step": 1}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_files_folder_and_name_are_on_the_disk_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_disk_calls(monkeypatch)
    path = write_checkpoint(tmp_path / "checkpoints", "best", {"model": {}}, {})
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    first = [
        *("mkdir checkpoints", f"sync {tmp_path.name}/", "mkdir .best.tmp-*"),
        *(f"sync {file} {sizes[file]}" for file in ("model.safetensors", "manifest.json")),
        *("sync .best.tmp-*/", "replace .best.tmp-* -> best", "sync checkpoints/"),
    ]
    assert calls == first
    with refused("cannot-write-checkpoint"):  # the folder of a run is not made anew
        write_checkpoint(tmp_path / "removed" / "checkpoints", "best", {"model": {}}, {})
    write_checkpoint(path.parent, "best", {"model": {}}, {})
    assert calls[len(first) :] == [
        "mkdir .best.tmp-*",
        *first[3:6],
        "replace best -> .best.old-*",
        "replace .best.tmp-* -> best",
        "sync checkpoints/",
        "replace .best.old-* -> .best.gone-*",
        "sync checkpoints/",
    ]


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
