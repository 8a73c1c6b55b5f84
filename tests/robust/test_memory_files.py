"""The mapped files of the perturbation memory: reserved whole, opened again, after a kill too."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sihg.robust.memory import DTYPES, PerturbationMemory
from tests.refused import refused
from tests.robust.perturbations import EPS, SHAPE, draws, everything


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_and_ram_hold_the_same(tmp_path: Path, dtype: str) -> None:
    ram = PerturbationMemory(10, SHAPE, EPS, dtype=dtype)
    files = PerturbationMemory(10, SHAPE, EPS, dtype=dtype, folder=tmp_path, chunk_bytes=120)
    for epoch in range(3):
        for where in torch.randperm(10, generator=torch.Generator().manual_seed(epoch)).split(4):
            for memory in (ram, files):
                memory.write(where, epoch, draws(epoch, len(where)))
    files.flush()
    del files
    again = PerturbationMemory(10, SHAPE, EPS, dtype=dtype, folder=tmp_path)  # its own files tell their size
    assert torch.equal(everything(again, 3), everything(ram, 3))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.bin")) == ram.nbytes
    assert len(list(tmp_path.glob("*.bin"))) > 2


@pytest.mark.parametrize(
    ("n", "shape", "eps", "dtype", "wrong"),
    [
        (11, SHAPE, EPS, "int8", "n = 10 where 11 is needed"),
        (10, (3, 2), EPS, "int8", "shape = [2, 3] where [3, 2] is needed"),
        (10, SHAPE, 0.2, "int8", "eps = 0.3 where 0.2 is needed"),
        (10, SHAPE, EPS, "fp16", "dtype = int8 where fp16 is needed"),
    ],
)
def test_a_folder_of_another_memory_is_refused(
    tmp_path: Path, n: int, shape: tuple[int, ...], eps: float, dtype: str, wrong: str
) -> None:
    PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)
    with refused("memory-folder", differences=wrong):
        PerturbationMemory(n, shape, eps, dtype=dtype, folder=tmp_path)


def test_damaged_files_of_a_folder_are_named(tmp_path: Path) -> None:
    PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)
    chunk, manifest = tmp_path / "generation1-0000.bin", tmp_path / "memory.json"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-1])
    with refused("memory-file-size", bytes=len(whole) - 1):
        PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)
    chunk.unlink()
    with refused("memory-file-unreadable"):
        PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)
    for text in ("{", "[]", "{}", '{"rows_a_chunk": null}'):
        manifest.write_text(text)
        with refused("memory-manifest"):
            PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)


def test_a_full_disk_is_told_before_training_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, calls = os.posix_fallocate, []

    def full(handle: int, offset: int, size: int) -> None:
        calls.append(size)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("memory-disk-full", needed=400):
        PerturbationMemory(10, SHAPE, EPS, folder=tmp_path / "memory", chunk_bytes=120)
    assert list((tmp_path / "memory").iterdir()) == []


def test_without_reservation_the_files_are_filled_with_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    PerturbationMemory(10, SHAPE, EPS, folder=tmp_path / "missing")

    def unsupported(_handle: int, _offset: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    PerturbationMemory(10, SHAPE, EPS, folder=tmp_path / "unsupported")
    for place in ("missing", "unsupported"):
        assert [p.read_bytes() for p in sorted((tmp_path / place).glob("*.bin"))] == [bytes(10 * 20)] * 2
    (tmp_path / "file").write_text("")
    with refused("memory-disk-full"):
        PerturbationMemory(10, SHAPE, EPS, folder=tmp_path / "file" / "memory")


def train(folder: Path, first: int, last: int) -> PerturbationMemory:
    """Visits `first` to `last` of a run whose epochs have eight visits; each depends on the one before."""
    memory = PerturbationMemory(8, SHAPE, EPS, folder=folder, chunk_bytes=100)
    memory.check_available(first // 8)
    for visit in range(first, last):
        epoch, i = divmod(visit, 8)
        where = torch.randperm(8, generator=torch.Generator().manual_seed(epoch))[i : i + 1]
        memory.write(where, epoch, 0.5 * memory.read(where, epoch) + 0.5 * draws(visit, 1))
    return memory


def test_after_a_kill_the_epoch_is_written_again_identically(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, 0, 29).flush()
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.robust.test_memory_files import train; "
        "memory = train(Path(sys.argv[1]), 0, 23); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code, str(killed)], cwd=root, check=False).returncode == -9
    train(killed, 19, 29).flush()  # from a checkpoint earlier in the epoch of the kill
    names = sorted(path.name for path in whole.iterdir())
    assert len(names) == 5
    for name in names:
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
    with refused("memory-overwritten", epoch=2):
        train(killed, 19, 29)
