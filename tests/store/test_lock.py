"""One process at a time; a lock ends with its holder."""

import errno
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sihg.store.run_folder import FolderHandle, InUseError, WaitWarning, locked
from tests.refused import refused

HOLD = """
import sys
from sihg.store.run_folder import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
TRY = """
import sys
from sihg.errors import InputError
from sihg.store.run_folder import locked
try:
    with locked(sys.argv[1]): print("held")
except InputError as error: print(error)
"""


@contextmanager
def holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock until it is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def attempt(folder: Path) -> str:
    """What another process says that takes the lock and frees it at once."""
    command = [sys.executable, "-c", TRY, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_second_process_is_refused_and_kill_9_frees_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        for _ in range(2):  # the refusal leaves the holder's name in the file
            with (
                pytest.raises(InUseError, match=rf"is in use by process {process.pid} on .*: wait for it or stop it"),
                locked(tmp_path),
            ):
                pytest.fail("two holders")
        process.kill()
        process.wait()
        with locked(tmp_path):
            assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()} on ")


def test_the_name_of_a_killed_holder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("12345 on a-machine-with-a-very-long-name.of-some-cluster.example.org" * 3)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} on {platform.node()}"


def test_our_lock_keeps_another_process_out_and_is_freed_by_an_error(tmp_path: Path) -> None:
    def work() -> None:
        with locked(tmp_path):
            assert f"{tmp_path} is in use by process {os.getpid()} " in attempt(tmp_path)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert attempt(tmp_path) == "held"
    assert (tmp_path / ".lock").read_bytes() == b""


def test_who_waits_gets_the_lock_of_a_process_that_ends(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        threading.Timer(0.2, process.kill).start()
        about = f"{tmp_path} is in use by process {process.pid} .*: waiting up to 60 seconds for its end"
        with pytest.warns(WaitWarning, match=about), locked(tmp_path, wait_seconds=60):
            assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()} on ")


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with locked(tmp_path):
        for _ in range(2):  # the first refusal does not free the lock
            with refused("folder-in-use", folder=tmp_path), locked(tmp_path):
                pytest.fail("two holders")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_neither_frees_the_lock_nor_keeps_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    with locked(tmp_path):
        ends = os.fork()
        if not ends:
            os._exit(0)
        os.waitpid(ends, 0)
        assert "is in use by process" in attempt(tmp_path)
        lives = os.fork()
        if not lives:
            os.close(write)
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
    assert attempt(tmp_path) == "held"
    os.close(write)
    os.waitpid(lives, 0)
    os.close(read)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with refused("cannot-lock", folder=tmp_path / "nowhere"), locked(tmp_path / "nowhere"):
        pytest.fail("locked nothing")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with refused("cannot-lock", folder=tmp_path), locked(tmp_path):
        pytest.fail("locked without a file")


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    with refused("cannot-lock", folder=tmp_path), locked(tmp_path):
        pytest.fail("held something that a kill would not free")


def test_a_full_disk_leaves_a_lock_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail)
    with locked(tmp_path):
        monkeypatch.undo()
        assert attempt(tmp_path) == f"{tmp_path} is in use by another process: wait for it or stop it"
    assert attempt(tmp_path) == "held"


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "folder"])
def test_a_lock_file_that_is_also_another_file_is_refused(tmp_path: Path, kind: str) -> None:
    other, lock = tmp_path / "other", tmp_path / ".lock"
    if kind != "dangling link":
        other.write_text("mine")
    if kind == "hard link":
        lock.hardlink_to(other)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(other)
    with refused("linked-file", path=lock), ExitStack() as held:
        held.enter_context(locked(tmp_path))
    assert (other.read_text() if other.exists() else "") == ("" if kind == "dangling link" else "mine")


# ---- a folder that goes away while it is in use


def move(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def replace_by_another(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / ".lock").touch()


def replace_by_a_copy(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    move(folder)
    folder.with_name("copy").rename(folder)


def remove_the_lock(folder: Path) -> None:
    (folder / ".lock").unlink()


def replace_the_lock(folder: Path) -> None:
    (folder / ".lock").rename(folder / "old")
    (folder / ".lock").touch()


@pytest.mark.parametrize(
    "act", [move, remove, replace_by_another, replace_by_a_copy, remove_the_lock, replace_the_lock]
)
def test_a_folder_that_is_no_longer_the_locked_one_is_noticed(tmp_path: Path, act: Callable[[Path], None]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder) as handle:
        handle.check()
        act(folder)
        with refused("folder-moved", path=folder):
            handle.check()
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_that_comes_back_is_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder) as handle:
        move(folder)
        (tmp_path / "moved").rename(folder)
        (folder / "metrics.csv").write_text("")
        handle.check()


def test_a_folder_that_may_not_be_looked_at_is_not_called_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = FolderHandle(tmp_path)

    def fail(*_: Any, **__: Any) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fail)
        with refused("cannot-look", path=tmp_path):
            handle.check()
    handle.check()
    handle.close()
    handle.close()
