"""The mapped files of the perturbation memory: reserved whole, opened again, checked against a checkpoint."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sihg.robust.memory import DTYPES, PerturbationMemory
from sihg.store.seal import NO_SUM, SEAL_KEY, seal
from tests.refused import refused
from tests.robust.perturbations import EPS, SHAPE, draws, everything, index, row


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
    whole = manifest.read_bytes()
    wrong: list[Any] = [
        [NO_SUM],
        {"shards": None},
        {"shards": 8},
        *({"shards": s, "id": "00" * 16} for s in (0, 3, 128)),
    ]
    for content in wrong:
        text = json.dumps(content if isinstance(content, list) else {**content, SEAL_KEY: NO_SUM})
        manifest.write_bytes(seal(text.encode()))
        with refused("memory-manifest", manifest=manifest):
            PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)
    manifest.write_text('{"n": 10, "shape": [2, 3], "eps": 0.3, "dtype": "int8", "shards": 1}')
    with refused("memory-seal", state="missing"):  # as it was before it had a seal
        PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)
    for i in range(len(whole)):
        manifest.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with refused("memory-seal", manifest=manifest):
            PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)


def test_a_memory_that_must_exist_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with refused("memory-folder-missing", folder=folder):
        PerturbationMemory(10, SHAPE, EPS, folder=folder, existing=True)
    folder.mkdir()
    with refused("memory-folder-missing", folder=folder):
        PerturbationMemory(10, SHAPE, EPS, folder=folder, existing=True)
    assert list(folder.iterdir()) == []
    PerturbationMemory(10, SHAPE, EPS, folder=folder).write(index(3), 0, draws(0, 1))
    assert PerturbationMemory(10, SHAPE, EPS, folder=folder, existing=True).read(index(3), 1).any()
    (folder / "memory.json").unlink()
    with refused("memory-manifest"):  # rows without their memory.json are neither used nor overwritten
        PerturbationMemory(10, SHAPE, EPS, folder=folder)
    assert not (folder / "memory.json").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    PerturbationMemory(10, SHAPE, EPS, folder=folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with refused("memory-file-link", path=link):
        PerturbationMemory(10, SHAPE, EPS, folder=link)
    for name in ("memory.json", "generation0-0000.bin", "generation1-0000.bin"):
        file, moved = folder / name, tmp_path / name
        os.link(file, moved)
        with refused("memory-file-link", path=file, what="a hard link"):
            PerturbationMemory(10, SHAPE, EPS, folder=folder)
        file.unlink()
        file.symlink_to(moved)
        with refused("memory-file-link", path=file, what="a symbolic link"):
            PerturbationMemory(10, SHAPE, EPS, folder=folder)
        file.unlink()
        os.mkfifo(file)
        with refused("memory-file-link", path=file, what="not a regular file"):
            PerturbationMemory(10, SHAPE, EPS, folder=folder)
        file.unlink()
        moved.rename(file)
    PerturbationMemory(10, SHAPE, EPS, folder=folder)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "generation0-0000.bin").symlink_to(tmp_path / "elsewhere")
    with refused("memory-file-link"):
        PerturbationMemory(10, SHAPE, EPS, folder=fresh)
    assert not (tmp_path / "elsewhere").exists()


def sparse_memory(folder: Path) -> tuple[PerturbationMemory, Path]:
    """Return a memory with one row, and its first file, which has lost the space of the others."""
    memory = PerturbationMemory(64, (1, 64, 64), EPS, folder=folder)
    memory.write(index(63), 0, draws(0, 1, shape=(1, 64, 64)))
    memory.flush()
    file = folder / "generation0-0000.bin"
    data = file.read_bytes()
    file.unlink()
    with file.open("wb") as copy:
        copy.seek(63 * len(data) // 64)
        copy.write(data[63 * len(data) // 64 :])
    assert file.stat().st_size == len(data)
    return memory, file


@pytest.mark.parametrize("supported", [True, False])
def test_holes_of_a_sparse_copy_get_their_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    written, file = sparse_memory(tmp_path / "memory")
    size, before = file.stat().st_size, 512 * file.stat().st_blocks
    if before >= size:
        pytest.skip("this file system has no holes")
    if not supported:
        monkeypatch.delattr(os, "posix_fallocate")
    again = PerturbationMemory(64, (1, 64, 64), EPS, folder=tmp_path / "memory")
    assert 512 * file.stat().st_blocks >= size
    assert torch.equal(everything(again, 1), everything(written, 1))


def test_a_disk_too_full_for_the_holes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse_memory(tmp_path)

    def full(_handle: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("memory-disk-full", folder=tmp_path):
        PerturbationMemory(64, (1, 64, 64), EPS, folder=tmp_path)


def test_a_failure_to_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)

    def fail(_chunk: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(np.memmap, "flush", fail)
    with refused("memory-flush", folder=tmp_path):
        memory.flush()


def test_the_names_are_on_the_disk_before_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []
    manifest = tmp_path / "run" / "memory" / "memory.json"
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, manifest.exists())))
    PerturbationMemory(10, SHAPE, EPS, folder=manifest.parent)
    places = [*sorted(manifest.parent.glob("*.bin")), manifest.parent, manifest.parent.parent]
    assert all((place.stat().st_ino, False) in synced for place in places)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_state_fits_any_folder_and_ram(tmp_path: Path, dtype: str) -> None:
    ram = PerturbationMemory(10, SHAPE, EPS, dtype=dtype)
    one, other = (PerturbationMemory(10, SHAPE, EPS, dtype=dtype, folder=tmp_path / name) for name in "ab")
    for memory in (ram, one):
        memory.write(index(*range(8)), 0, draws(0, 8))
        memory.write(index(2, 5), 1, draws(1, 2))
    assert all(torch.equal(a, b) for a, b in zip(ram.state(1).values(), one.state(1).values(), strict=True))
    other.load_state(one.state(1))
    assert torch.equal(everything(other, 2), everything(ram, 2))
    assert not np.array_equal(row(one, 0, 1), row(other, 0, 1))  # the checksums have the ids


def test_clearing_makes_a_memory_new(tmp_path: Path) -> None:
    memory = PerturbationMemory(10, SHAPE, EPS, folder=tmp_path, chunk_bytes=64)
    for epoch in range(2):
        memory.write(torch.arange(10), epoch, draws(epoch, 10))
    memory.clear()
    assert not any(path.read_bytes().strip(b"\0") for path in tmp_path.glob("*.bin"))


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


def test_after_a_kill_the_epoch_is_written_again_identically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: "00" * count)  # the same id in both folders
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, 0, 29).flush()
    code = (
        "import os, secrets, signal, sys; from pathlib import Path; from tests.robust.test_memory_files import train; "
        "secrets.token_hex = lambda count: '00' * count; "
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


# ---- a memory in files, checked against the state in a checkpoint


def in_files(folder: Path, **options: Any) -> PerturbationMemory:
    return PerturbationMemory(10, SHAPE, EPS, folder=folder, chunk_bytes=64, **options)


def saved_in_epoch_4(folder: Path) -> tuple[PerturbationMemory, dict[str, Tensor]]:
    """Return a memory after four epochs and three samples (0, 1, 2) of the fifth, and its state."""
    memory = in_files(folder)
    for epoch in range(4):
        memory.write(torch.arange(10), epoch, draws(epoch, 10))
    memory.write(index(0, 1, 2), 4, draws(4, 3))
    return memory, memory.file_state(4)


def test_the_state_of_files_is_small_and_fits_the_same_files(tmp_path: Path) -> None:
    memory, state = saved_in_epoch_4(tmp_path)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in state.items()} == {
        "id": (torch.uint8, (16,)),
        "tags": (torch.int32, (2, 10, 2)),
    }
    assert state["tags"][0, :, 0].tolist() == [5, 5, 5] + 7 * [3]
    memory.flush()
    in_files(tmp_path, existing=True).check_files(state, 4)
    for epoch in (4, 5):  # more is written after the checkpoint
        memory.write(index(3, 9), 4, draws(epoch, 2))
        memory.check_files(state, 4)
    in_files(tmp_path / "new").check_files(in_files(tmp_path / "new").file_state(0), 0)


def flip(byte: int, bit: int) -> Callable[[Any], None]:
    def change(stored: Any) -> None:
        stored[byte] ^= 1 << bit

    return change


def zero(stored: Any) -> None:
    stored[:] = 0


def set_epoch(epoch: int) -> Callable[[Any], None]:
    def change(stored: Any) -> None:
        stored[-8:-4].view("<u4")[:] = epoch + 1

    return change


@pytest.mark.parametrize(
    ("epoch", "sample", "change", "damage", "said"),
    [
        (3, 7, zero, "zero", "is zero but was written in epoch 3"),
        (4, 1, zero, "zero", "is zero but was written in epoch 4"),
        (4, 7, zero, "zero", "is zero but was written in epoch 2"),  # not needed any more, but never so written
        (3, 7, set_epoch(1), "epoch-tag", "has a damaged epoch tag: epoch 1 instead of epoch 3"),
        (3, 7, set_epoch(-1), "epoch-tag", "has a damaged epoch tag: no epoch instead of epoch 3"),
        (3, 7, set_epoch(5), "epoch-tag", "has a damaged epoch tag: epoch 5 instead of epoch 3"),
        (4, 1, set_epoch(2), "epoch-tag", "has a damaged epoch tag: epoch 2 instead of epoch 4"),
        *(
            (epoch, 2, flip(byte, 3), "checksum", "has the checksum")
            for epoch in (3, 4)
            for byte in (0, 5, 6, 7, 8, 19)
        ),
        (4, 8, flip(17, 3), "checksum", "the checkpoint says"),
    ],
)
def test_a_damaged_row_is_named_before_training(
    tmp_path: Path, epoch: int, sample: int, change: Callable[[Any], None], damage: str, said: str
) -> None:
    memory, state = saved_in_epoch_4(tmp_path)
    change(row(memory, epoch, sample))
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    with refused("memory-row-damaged", sample=sample, damage=damage) as caught:
        memory.check_files(state, 4)
    assert said in str(caught.value.values["what"])
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before


def test_stale_rows_and_rows_of_another_run_are_named(tmp_path: Path) -> None:
    memory, state = saved_in_epoch_4(tmp_path / "one")
    other, others_state = saved_in_epoch_4(tmp_path / "other")
    for epoch, sample in ((3, 6), (4, 1), (4, 8)):
        kept = row(memory, epoch, sample).copy()
        row(memory, epoch, sample)[:] = row(other, epoch, sample)
        with refused("memory-row-damaged", sample=sample, damage="checksum"):
            memory.check_files(state, 4)
        row(memory, epoch, sample)[:] = kept
    memory.check_files(state, 4)
    with refused("memory-files-other", found=memory._id.hex(), wanted=other._id.hex()):
        memory.check_files(others_state, 4)
    kept = row(memory, 3, 6).copy()
    memory.write(index(6), 1, draws(1, 1))
    with refused("memory-row-damaged", sample=6, damage="stale") as caught:
        memory.check_files(state, 4)
    assert caught.value.values["what"] == "holds epoch 1 instead of epoch 3"
    memory.write(index(6), 5, draws(1, 1))
    with refused("memory-overwritten", sample=6, epoch=4, last=5):
        memory.check_files(state, 4)
    row(memory, 3, 6)[:] = kept
    memory.write(index(1), 4, draws(7, 1))  # a row of this epoch that the run did not write
    with refused("memory-row-damaged", sample=1, damage="checksum"):
        memory.check_files(state, 4)


def test_a_row_that_was_never_written_must_be_zero(tmp_path: Path) -> None:
    memory = in_files(tmp_path)
    state = memory.file_state(0)
    row(memory, 1, 4)[2] = 1
    with refused("memory-row-damaged", sample=4, damage="never-written"):
        memory.check_files(state, 0)
    memory.clear()
    memory.write(index(4), 1, draws(0, 1))
    with refused("memory-overwritten", sample=4, epoch=0, last=1):
        memory.check_files(state, 0)


def test_a_state_that_is_not_of_files_is_refused(tmp_path: Path) -> None:
    memory, state = saved_in_epoch_4(tmp_path)
    for wrong in ({}, memory.state(4), {"id": state["id"]}):  # a checkpoint of an older version, of RAM, half of one
        with refused("memory-files-state", folder=tmp_path):
            memory.check_files(wrong, 4)
    for key, value in (("tags", state["tags"][:, 1:]), ("tags", state["tags"].long()), ("id", state["id"][1:])):
        with refused("memory-files-state"):
            memory.check_files({**state, key: value}, 4)


@pytest.mark.parametrize("tear", [slice(0, 4), slice(0, 14), slice(6, 20), slice(12, 20), slice(0, 20)])
def test_rows_torn_after_the_checkpoint_are_written_again(tmp_path: Path, tear: slice) -> None:
    memory, state = saved_in_epoch_4(tmp_path)
    old = row(memory, 4, 6).copy()
    memory.write(index(6, 7), 4, draws(8, 2))
    torn = old.copy()
    torn[tear] = row(memory, 4, 6)[tear]
    row(memory, 4, 6)[:] = torn
    again = in_files(tmp_path, existing=True)
    again.check_files(state, 4)
    again.write(index(3), 4, draws(9, 1))
    later = again.file_state(4)  # a second checkpoint, at which rows 6 and 7 are not written again yet
    expected = state["tags"].clone()
    expected[0, 3] = later["tags"][0, 3]
    assert torch.equal(later["tags"], expected)
    for where in (index(6, 7), index(4, 5, 8, 9)):
        in_files(tmp_path, existing=True).check_files(later, 4)
        again.write(where, 4, draws(10, len(where)))
    finished = again.file_state(5)
    assert finished["tags"][0, :, 0].tolist() == 10 * [5]
    in_files(tmp_path, existing=True).check_files(finished, 5)


def test_a_tag_torn_between_two_sectors_is_written_again(tmp_path: Path) -> None:
    def saved(folder: Path) -> tuple[PerturbationMemory, dict[str, Tensor]]:
        memory = PerturbationMemory(130, (8,), EPS, folder=folder)
        for epoch in range(3):
            memory.write(torch.arange(130), epoch, draws(epoch, 130, shape=(8,)))
        return memory, memory.file_state(3)

    memory, state = saved(tmp_path)
    at_the_border = [i for i in range(130) if ((i + 1) * memory._format.row_bytes - 4) % 512 == 0]
    assert at_the_border
    for sample in (at_the_border[0], 5):
        row(memory, 3, sample)[-4:] ^= 255
        if sample != 5:
            memory.check_files(state, 3)
    with refused("memory-row-damaged", sample=5, damage="checksum"):
        memory.check_files(state, 3)
