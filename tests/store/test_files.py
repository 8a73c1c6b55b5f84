"""Files are whole or absent, and on the disk when a write returns."""

import errno
import os
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sihg.store.arrays import write_arrays
from sihg.store.files import make_folder, write_bytes, write_text
from sihg.store.run_folder import describe_environment
from tests.refused import refused
from tests.store.disk_calls import record_disk_calls


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = write_text(tmp_path / "new" / "folder" / "a.txt", "one\r\n")
    write_text(path, "θ\r\n")
    assert path.read_bytes() == "θ\r\n".encode()
    assert names(path.parent) == ["a.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("compressed", [True, False])
def test_arrays_come_back(tmp_path: Path, compressed: bool) -> None:
    arrays = {"margin": np.linspace(0, 1, 1000), "text": np.array("é"), "zeros": np.zeros(5000, np.int8)}
    path = write_arrays(tmp_path / "a.npz", arrays, compressed=compressed)
    with np.load(path, allow_pickle=False) as stored:
        assert {name: stored[name].tolist() for name in stored} == {n: a.tolist() for n, a in arrays.items()}
    assert (path.stat().st_size < 12_000) == compressed
    assert names(tmp_path) == ["a.npz"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_data_is_on_the_disk_before_the_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_disk_calls(monkeypatch)
    write_bytes(tmp_path / "a.bin", b"12345")
    assert calls == ["sync .a.bin.* 5", "replace .a.bin.* -> a.bin", f"sync {tmp_path.name}/"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_new_folders_are_on_the_disk_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_disk_calls(monkeypatch)
    write_arrays(tmp_path / "outer" / "inner" / "a.npz", {})
    assert calls[:4] == ["mkdir outer", f"sync {tmp_path.name}/", "mkdir inner", "sync outer/"]
    assert calls[-2:] == ["replace .a.npz.* -> a.npz", "sync inner/"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = write_text(tmp_path / "a.txt", "old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, fail)
    with refused("cannot-write-file", path=path):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_without_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, original = write_text(tmp_path / "a.txt", "old"), Path.open
    monkeypatch.setattr(Path, "open", lambda _path, _mode: original(Path("/dev/full"), "wb"))
    with pytest.raises(ValueError, match=r"cannot write .*a.txt \(No space left on device\): make room there"):
        write_bytes(path, b"x" * 100_000)
    monkeypatch.undo()
    assert path.read_text() == "old"


def test_a_wrong_argument_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(TypeError):
        write_bytes(path, 1.5)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    file = write_text(tmp_path / "file", "")
    for path in (file / "a.txt", file / "below" / "a.txt"):
        with refused("cannot-write-file", path=path):
            write_text(path, "")
        with refused("cannot-write-folder", path=path):
            make_folder(path)
    with pytest.raises(ValueError, match="it is a file"):
        make_folder(file)
    make_folder(tmp_path / "new" / "folder")
    assert names(tmp_path / "new" / "folder") == []


def test_environment_names_versions_and_hardware() -> None:
    found = msgspec.to_builtins(describe_environment(threads=3))
    assert list(found) == ["python", "sihg", "torch", "numpy", "processor", "cores", "threads"]
    assert all(found.values())
