"""One process at a time; a lock ends with its holder."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.store.lock import locked

HOLD = """
import sys
from sihg.store.lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
TRY = """
import sys
from sihg.errors import InputError
from sihg.store.lock import locked
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


def test_a_second_process_is_refused_and_kill_9_frees_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with (
            pytest.raises(InputError, match=rf"is in use by process {process.pid} on .*: wait for it or stop it"),
            locked(tmp_path),
        ):
            pytest.fail("two holders")
        process.kill()
        process.wait()
        with locked(tmp_path):
            assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()} on ")


def test_our_lock_keeps_another_process_out_and_is_freed_by_an_error(tmp_path: Path) -> None:
    def attempt() -> str:
        return subprocess.run(
            [sys.executable, "-c", TRY, str(tmp_path)], check=True, capture_output=True, text=True
        ).stdout.strip()

    def work() -> None:
        with locked(tmp_path):
            assert f"{tmp_path} is in use by process {os.getpid()} " in attempt()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert attempt() == "held"
    assert (tmp_path / ".lock").read_bytes() == b""


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(InputError, match="is in use by process"), locked(tmp_path):
            pytest.fail("two holders")
        with pytest.raises(InputError, match="is in use by process"), locked(tmp_path):
            pytest.fail("the refusal freed the lock")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot lock .*nowhere \(No such file"), locked(tmp_path / "nowhere"):
        pytest.fail("locked nothing")
