"""Files are whole or not there; Ctrl-C is a request."""

import errno
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.interrupt import stop_on_interrupt
from sihg.store.environment import environment
from sihg.store.files import write_text, write_whole


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = write_text(tmp_path / "new" / "folder" / "a.txt", "one\n")
    write_text(path, "two\n")
    assert path.read_text() == "two\n"
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "old")

    def fill(temporary: Path) -> None:
        temporary.write_text("ne")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(InputError, match=r"cannot write .*a.txt \(No space left on device\): free the place"):
        write_whole(path, fill)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_bug_in_the_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(ZeroDivisionError):
        write_whole(path, lambda _: 1 / 0)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_interrupt_is_noted_once_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_signals_alone() -> None:
    found = []

    def work() -> None:
        with stop_on_interrupt() as asked:
            found.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_environment_names_versions_and_hardware() -> None:
    found = environment()
    assert {"python", "sihg", "torch", "numpy", "processor", "cores"} <= found.keys()
    assert all(found.values())
