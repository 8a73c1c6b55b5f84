"""A perturbation memory that several processes share: each owns its samples, and what is saved fits any number."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sihg.core.processes import SHARDS
from sihg.robust.memory import PerturbationMemory
from sihg.robust.memory import perturbation_memory as module
from sihg.store.memory_files import FORMAT, MAX_SHARDS, expected_files
from sihg.store.seal import NO_SUM, SEAL_KEY, seal
from tests.refused import refused
from tests.robust.perturbations import EPS, SHAPE, draws, everything, index, row

N = 21
EPOCHS = 3


def shared(world_size: int, folder: Path | None, **options: Any) -> list[PerturbationMemory]:
    """Return the memories of all processes, made in the order of their ranks."""
    return [
        PerturbationMemory(N, SHAPE, EPS, folder=folder, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def owned(memory: PerturbationMemory) -> Tensor:
    return torch.arange(N)[memory.rank :: memory.world_size]


def fill(memories: list[PerturbationMemory], epochs: int = EPOCHS) -> None:
    """Write all samples in each epoch, and some of the next."""
    for memory in memories:
        for epoch in range(epochs + 1):
            where = owned(memory) if epoch < epochs else owned(memory)[:2]
            memory.write(where, epoch, draws(epoch, N)[where])


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("world_size", [2, 4, 8, 32])
@pytest.mark.parametrize("in_files", [False, True])
def test_processes_hold_together_what_one_holds(tmp_path: Path, world_size: int, in_files: bool) -> None:
    one = PerturbationMemory(N, SHAPE, EPS)
    several = shared(world_size, tmp_path if in_files else None)
    fill([one])
    fill(several)
    for memory in several:
        mine = owned(memory)
        assert torch.equal(memory.read(mine, EPOCHS), one.read(mine, EPOCHS))
    assert sum(memory.owned for memory in several) == N
    assert sum(memory.nbytes for memory in several) == one.nbytes
    assert f"process 1 of {world_size}" in repr(several[1])


def test_in_ram_only_the_owned_rows_are_there() -> None:
    memory = PerturbationMemory(N, SHAPE, EPS, rank=1, world_size=4)
    assert [len(rows) for rows in memory._shards.generations[0].values()] == [5]
    assert memory.owned == 5


def test_foreign_samples_are_refused(tmp_path: Path) -> None:
    PerturbationMemory(N, SHAPE, EPS, folder=tmp_path, world_size=4)
    for folder in (None, tmp_path):
        memory = PerturbationMemory(N, SHAPE, EPS, folder=folder, rank=1, world_size=4)
        told = {"sample": 7, "owner": 3, "rank": 1, "world_size": 4}
        with refused("memory-foreign-sample", **told) as caught:
            memory.read(index(5, 7), 0)
        assert "sihg.ShardedBatchSampler" in str(caught.value)
        with refused("memory-foreign-sample", **told):
            memory.write(index(5, 7), 0, draws(0, 2))
        assert not memory.read(index(5), 1).any()
    with refused("memory-foreign-sample", sample=7):
        memory.prefetch(index(5, 7), 0)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 3), (2, 2), (-1, 2), (0, 0), (0, 128)])
def test_processes_that_do_not_divide_64_are_refused(rank: int, world_size: int) -> None:
    with refused("process-rank", rank=rank, world_size=world_size):
        PerturbationMemory(N, SHAPE, EPS, rank=rank, world_size=world_size)


@pytest.mark.parametrize("shards", [0, 3, 128])
def test_a_wrong_number_of_shards_is_refused(tmp_path: Path, shards: int) -> None:
    with refused("memory-shards", shards=shards):
        PerturbationMemory(N, SHAPE, EPS, folder=tmp_path, shards=shards)


def test_the_order_of_an_epoch_has_the_same_shards() -> None:
    assert MAX_SHARDS == SHARDS


@pytest.mark.parametrize(("options", "shards"), [({}, 1), ({"shards": 4}, 4), ({"chunk_bytes": 200}, 4)])
def test_a_sample_lives_in_the_file_of_its_shard(tmp_path: Path, options: dict[str, Any], shards: int) -> None:
    memory = PerturbationMemory(N, SHAPE, EPS, folder=tmp_path, **options)
    fill([memory])
    memory.flush()
    assert len(list(tmp_path.glob("*.bin"))) == 2 * shards
    for sample in range(N):
        rows = np.fromfile(tmp_path / f"generation0-{sample % shards:04d}.bin", np.uint8).reshape(-1, 20)
        assert rows[sample // shards, -12:-8].view("<u4")[0] == sample
    about = json.loads((tmp_path / "memory.json").read_text())
    assert (about["format"], about["shards"]) == (FORMAT, shards)


def test_files_are_at_most_64_and_small_where_that_is_enough(tmp_path: Path) -> None:
    PerturbationMemory(200, SHAPE, EPS, folder=tmp_path / "many", chunk_bytes=1)
    assert len(list((tmp_path / "many").glob("*.bin"))) == 2 * MAX_SHARDS
    few = PerturbationMemory(3, SHAPE, EPS, folder=tmp_path / "few", shards=8)  # fewer samples than shards
    few.write(torch.arange(3), 0, draws(0, 3))
    assert everything(few, 1).any()
    assert len(list((tmp_path / "few").glob("*.bin"))) == 2 * 3
    empty = PerturbationMemory(3, SHAPE, EPS, folder=tmp_path / "few", rank=6, world_size=8)
    assert empty.owned == 0
    assert len(empty.state(0, 6, 8)["tags"]) == len(empty.file_state(0, 6, 8)["tags"][0]) == 0
    empty.check_files(empty.file_state(0, 6, 8), 0, 6, 8)
    empty.load_state(empty.state(0, 6, 8), 6, 8)


def test_a_process_maps_only_its_own_files(tmp_path: Path) -> None:
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    PerturbationMemory(N, SHAPE, EPS, folder=tmp_path / "memory", shards=8)
    memory = PerturbationMemory(N, SHAPE, EPS, folder=tmp_path / "memory", rank=1, world_size=4)
    mapped = set(re.findall(rf"{tmp_path}/memory/(.*)\.bin", Path("/proc/self/maps").read_text()))
    assert mapped == {f"generation{g}-{v:04d}" for g in range(2) for v in (1, 5)}
    assert memory.read(owned(memory), 0).shape == (5, *SHAPE)


def test_files_are_reassigned_to_another_number_of_processes(tmp_path: Path) -> None:
    one = PerturbationMemory(N, SHAPE, EPS)
    fill([one])
    fill(shared(4, tmp_path))
    for world_size in (1, 2, 4):
        for memory in shared(world_size, tmp_path, existing=True):
            assert torch.equal(memory.read(owned(memory)[2:], EPOCHS), one.read(owned(memory)[2:], EPOCHS))
    with refused("memory-shards-processes", shards=4, world_size=8):
        PerturbationMemory(N, SHAPE, EPS, folder=tmp_path, world_size=8)


def test_only_process_0_makes_files(tmp_path: Path) -> None:
    with refused("memory-not-made", rank=1, folder=tmp_path / "memory"):
        PerturbationMemory(N, SHAPE, EPS, folder=tmp_path / "memory", rank=1, world_size=2)
    assert not (tmp_path / "memory").exists()


def test_files_of_the_layout_before_are_told(tmp_path: Path) -> None:
    PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)
    old = {"n": 10, "shape": [2, 3], "eps": 0.3, "dtype": "int8", "rows_a_chunk": 10, "id": "00" * 16}
    (tmp_path / "memory.json").write_bytes(seal(json.dumps({**old, SEAL_KEY: NO_SUM}).encode()))
    with refused("memory-format", found=1, wanted=FORMAT):
        PerturbationMemory(10, SHAPE, EPS, folder=tmp_path)


# ---- by lane


@pytest.mark.parametrize("in_files", [False, True])
def test_states_of_lanes_fit_any_number_of_processes(tmp_path: Path, in_files: bool) -> None:
    one = PerturbationMemory(N, SHAPE, EPS)
    fill([one])
    whole = one.state(EPOCHS)
    saved = [one.state(EPOCHS, lane, 4) for lane in range(4)]
    for lane, state in enumerate(saved):
        assert torch.equal(state["values"], whole["values"][lane::4])
        assert torch.equal(state["tags"], whole["tags"][lane::4])
    for world_size in (1, 2, 4):
        several = shared(world_size, tmp_path / str(world_size) if in_files else None)
        for lane, state in enumerate(saved):
            several[lane % world_size].load_state(state, lane, 4)
        found = [several[lane % world_size].state(EPOCHS, lane, 4) for lane in range(4)]
        assert all(same(a, b) for a, b in zip(found, saved, strict=True))
    with refused("memory-state-other"):
        one.load_state(saved[0], 1, 4)
    damaged = {**saved[3], "tags": saved[3]["tags"].clone()}
    damaged["tags"][2, 1] = -1
    with refused("memory-state-damaged", sample=11):
        one.load_state(damaged, 3, 4)
    damaged["tags"][2, 1] = saved[3]["tags"][2, 1] ^ 1
    with refused("memory-row-damaged", sample=11):
        one.load_state(damaged, 3, 4)
    assert same(one.state(EPOCHS), whole)


@pytest.mark.parametrize(
    ("rank", "world_size", "lane", "lanes"), [(0, 2, 0, 1), (0, 2, 1, 2), (0, 4, 0, 2), (0, 1, 2, 2)]
)
def test_lanes_of_other_processes_are_refused(rank: int, world_size: int, lane: int, lanes: int) -> None:
    memory = PerturbationMemory(N, SHAPE, EPS, rank=rank, world_size=world_size)
    for call in (memory.state, memory.file_state):
        with refused("memory-foreign-lane", lane=lane, lanes=lanes, rank=rank, world_size=world_size):
            call(0, lane, lanes)


def test_files_are_checked_by_lane_on_any_number_of_processes(tmp_path: Path) -> None:
    writers = shared(2, tmp_path, shards=4)
    fill(writers)
    saved = [writers[lane % 2].file_state(EPOCHS, lane, 4) for lane in range(4)]
    one = PerturbationMemory(N, SHAPE, EPS, folder=tmp_path, existing=True)
    whole = one.file_state(EPOCHS)
    assert all(torch.equal(saved[lane]["tags"], whole["tags"][:, lane::4]) for lane in range(4))
    for world_size in (1, 2, 4):
        several = shared(world_size, tmp_path, existing=True)
        for lane, state in enumerate(saved):
            several[lane % world_size].check_files(state, EPOCHS, lane, 4)
    torn = row(one, EPOCHS, 10)  # not written again yet
    torn[:4] ^= 255
    old = row(one, EPOCHS - 1, 10)
    several = shared(2, tmp_path, existing=True)
    for lane, state in enumerate(saved):
        several[lane % 2].check_files(state, EPOCHS, lane, 4)
    found = [several[lane % 2].file_state(EPOCHS, lane, 4) for lane in range(4)]
    assert all(same(a, b) for a, b in zip(found, saved, strict=True))
    several[0].write(index(10), EPOCHS, draws(9, 1))
    later = several[0].file_state(EPOCHS, 2, 4)["tags"]
    assert later[EPOCHS % 2, 2, 0] == EPOCHS + 1
    assert torch.equal(later[:, 3:], saved[2]["tags"][:, 3:])
    old[:] = 0
    with refused("memory-row-damaged", sample=10, damage="zero"):
        shared(4, tmp_path, existing=True)[2].check_files(saved[2], EPOCHS, 2, 4)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_histograms_of_lanes_add_up_exactly(norm: str) -> None:
    one = PerturbationMemory(N, SHAPE, EPS, dtype="fp16")
    fill([one])
    expected = sum(one.histogram_counts(EPOCHS, norm, 7, lane, 4) for lane in range(4))
    assert isinstance(expected, Tensor)
    assert expected.dtype == torch.float64
    assert torch.equal(expected, one.histogram_counts(EPOCHS, norm, 7))
    assert expected.sum() == N * (6 if norm == "linf" else 1)
    assert one.histogram(EPOCHS, norm, 7) == (expected / expected.sum()).tolist()
    several = shared(2, None, dtype="fp16")
    fill(several)
    counts = [several[lane % 2].histogram_counts(EPOCHS, norm, 7, lane, 4) for lane in range(4)]
    assert torch.equal(torch.stack(counts).sum(0), expected)


def test_clearing_and_looking_for_later_epochs_are_for_owned_rows(tmp_path: Path) -> None:
    several = shared(2, tmp_path)
    fill(several)
    several[0].clear()
    several[0].check_available(0)
    with refused("memory-overwritten", epoch=0):
        several[1].check_available(0)
    assert not several[0].read(owned(several[0]), 9).any()
    assert several[1].read(owned(several[1]), 9).any()


# ---- read ahead and written behind


def in_files(folder: Path) -> PerturbationMemory:
    return PerturbationMemory(N, SHAPE, EPS, folder=folder, shards=4)


def test_reading_ahead_changes_no_result(tmp_path: Path) -> None:
    plain, ahead = PerturbationMemory(N, SHAPE, EPS), in_files(tmp_path)
    batches = [
        (epoch, where)
        for epoch in range(5)
        for where in torch.randperm(N, generator=torch.Generator().manual_seed(epoch)).split(4)
    ]
    for (epoch, where), following in zip(batches, [*batches[1:], None], strict=True):
        old = ahead.read(where, epoch)
        assert torch.equal(old, plain.read(where, epoch))
        if following is not None:  # in the last batch of an epoch: of samples that are written afterwards
            ahead.prefetch(following[1], following[0])
        new = 0.5 * old + 0.5 * draws(epoch, len(where))
        for memory in (plain, ahead):
            memory.write(where, epoch, new)
        new.zero_()  # the caller's own again
        where.clone().zero_()
    assert torch.equal(everything(ahead, 5), everything(plain, 5))


def test_what_was_read_ahead_is_for_the_same_rows_and_epoch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = in_files(tmp_path)
    fill([memory])
    reads: list[str] = []
    plain = module.PerturbationMemory._read

    def spy(self: PerturbationMemory, where: Any, epoch: int) -> Tensor:
        reads.append(threading.current_thread().name)
        return plain(self, where, epoch)

    monkeypatch.setattr(module.PerturbationMemory, "_read", spy)
    memory.prefetch(index(3, 8), EPOCHS)
    for where in (index(8, 3), index(3), index(3, 8), index(3, 8)):
        memory.read(where, EPOCHS)
    assert sorted(name.startswith("sihg-memory") for name in reads) == [False, False, False, True]
    for number in range(99):  # that nobody reads
        memory.prefetch(index(number % N), EPOCHS)
    assert len(memory._behind._reads) <= 64


def test_an_error_ahead_is_raised_by_the_read(tmp_path: Path) -> None:
    memory = in_files(tmp_path)
    fill([memory])
    row(memory, EPOCHS - 1, 6)[0] ^= 1
    memory.prefetch(index(5, 6), EPOCHS)
    memory.read(index(7), EPOCHS)
    with refused("memory-row-damaged", sample=6):
        memory.read(index(5, 6), EPOCHS)


def test_an_error_behind_is_raised_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no more")

    for call in ("flush", "clear", "read", "state", "file_state", "histogram"):
        memory = in_files(tmp_path / call)
        with monkeypatch.context() as patch:
            patch.setattr(memory, "_store", fail)
            memory.write(index(3), 0, draws(0, 1))
        arguments: dict[str, tuple[Any, ...]] = {"read": (index(3), 1), "histogram": (1, "linf", 3)}
        with pytest.raises(MemoryError, match="no more"):
            getattr(memory, call)(*arguments.get(call, () if call in ("flush", "clear") else (0,)))
        memory.flush()  # told once


def test_rows_still_being_written_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, started, go = in_files(tmp_path), threading.Event(), threading.Event()
    store = memory._store

    def slowly(*arguments: Any) -> None:
        started.set()
        go.wait()
        store(*arguments)

    monkeypatch.setattr(memory, "_store", slowly)
    memory.write(index(3), 0, draws(0, 1))
    started.wait()
    timer = threading.Timer(0.05, go.set)
    timer.start()
    assert memory.read(index(3), 1).any()
    assert go.is_set()
    timer.join()


def test_a_process_ends_with_its_rows_written(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.robust.test_memory_processes import fill, in_files; "
        "memory = in_files(Path(sys.argv[1])); fill([memory]); memory.prefetch(__import__('torch').arange(4), 3)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], cwd=root, timeout=60, check=False)
    assert done.returncode == 0
    again, expected = in_files(tmp_path / "a"), PerturbationMemory(N, SHAPE, EPS)
    fill([expected])
    assert torch.equal(everything(again, EPOCHS + 1), everything(expected, EPOCHS + 1))


def test_every_missing_file_of_a_memory_is_known(tmp_path: Path) -> None:
    PerturbationMemory(N, SHAPE, EPS, folder=tmp_path, shards=4)
    assert sorted(expected_files(tmp_path)) == sorted(tmp_path.iterdir())
    few = tmp_path / "few"
    PerturbationMemory(3, SHAPE, EPS, folder=few, shards=4)
    assert sorted(expected_files(few)) == sorted(few.iterdir())
    for damaged in (b"", b"[]", b'{"n": null}', b'{"n": 1e999, "shards": 1}'):
        (few / "memory.json").write_bytes(damaged)
        assert len(expected_files(few)) == 3
