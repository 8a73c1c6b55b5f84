"""The perturbation memory: what it stores, what it checks, what it refuses."""

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sihg.robust.memory import DTYPES, PerturbationMemory
from tests.refused import refused
from tests.robust.perturbations import EPS, SHAPE, draws, everything, index, row


@pytest.fixture(params=["ram", "files"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> PerturbationMemory:
    folder = tmp_path / "memory" if request.param == "files" else None
    return PerturbationMemory(10, SHAPE, EPS, folder=folder, chunk_bytes=64)


@pytest.mark.parametrize(("dtype", "error"), [("int8", EPS / 254), ("fp16", EPS * 2**-11), ("fp32", EPS * 2**-22)])
@given(seed=st.integers(0, 10**6), epoch=st.integers(0, 9), samples=st.sets(st.integers(0, 9)))
def test_an_epoch_reads_what_the_epoch_before_wrote(
    dtype: str, error: float, seed: int, epoch: int, samples: set[int]
) -> None:
    memory = PerturbationMemory(10, SHAPE, EPS, dtype=dtype)
    where, delta = index(*samples), draws(seed, len(samples))
    memory.write(where, epoch, delta)
    assert not everything(memory, epoch).any()
    read = memory.read(where, epoch + 1)
    assert read.dtype == torch.float32
    assert read.shape == delta.shape
    assert bool(((read - delta).abs() <= error * (1 + 1e-5)).all())
    rest = index(*(set(range(10)) - samples))
    assert not memory.read(rest, epoch + 1).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_happens_once_and_keeps_the_ball(dtype: str) -> None:
    memory = PerturbationMemory(50, SHAPE, EPS, dtype=dtype)
    memory.write(torch.arange(50), 0, draws(0, 50) * 1.0009)
    once = everything(memory, 1)
    memory.write(torch.arange(50), 1, once)
    torch.testing.assert_close(everything(memory, 2), once, rtol=2e-7 if dtype == "fp32" else 0, atol=0)
    memory.write(index(0), 2, torch.full((1, *SHAPE), EPS * 1.0009))
    assert torch.equal(memory.read(index(0), 3), torch.full((1, *SHAPE), EPS))


def test_int8_is_the_nearest_step() -> None:
    memory = PerturbationMemory(1, (4,), 1.0)
    memory.write(index(0), 0, torch.tensor([[1.0, -1.0, 3.4 / 127, -3.6 / 127]], dtype=torch.float64))
    assert memory.state(0)["values"].tolist() == [[127, -127, 3, -4]]


def test_an_epoch_reads_the_one_before_and_leaves_it_alone(memory: PerturbationMemory) -> None:
    memory.write(torch.arange(10), 0, draws(0, 10))
    for epoch in range(1, 5):
        before = everything(memory, epoch)
        for half in torch.arange(10).flip(0).split(3):
            memory.write(half, epoch, -memory.read(half, epoch))
            assert torch.equal(everything(memory, epoch), before)
        assert torch.equal(everything(memory, epoch + 1), -before)


def test_samples_come_back_in_the_order_asked_for(memory: PerturbationMemory) -> None:
    delta = draws(1, 10)
    memory.write(torch.arange(10), 0, delta)
    asked = index(9, 0, 4, 4, 7)
    torch.testing.assert_close(memory.read(asked, 1), delta[asked], rtol=0, atol=EPS / 253)


def test_a_sample_that_skips_epochs_keeps_its_newest_value(memory: PerturbationMemory) -> None:
    memory.write(index(3), 0, draws(0, 1))
    old = memory.read(index(3), 1)
    assert torch.equal(memory.read(index(3), 2), old)
    memory.write(index(3), 1, draws(1, 1))
    assert torch.equal(memory.read(index(3), 1), old)
    new = memory.read(index(3), 2)
    assert not torch.equal(new, old)
    for epoch in (3, 4, 9):
        assert torch.equal(memory.read(index(3), epoch), new)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from(list(DTYPES)),
    stop=st.tuples(st.integers(0, 3), st.integers(0, 8)),
    shape=st.sampled_from([(), (1,), (3,), (2, 3)]),
)
def test_the_state_at_any_moment_restores_the_rest_of_the_run(
    seed: int, dtype: str, stop: tuple[int, int], shape: tuple[int, ...]
) -> None:
    def step(memory: PerturbationMemory, epoch: int, i: int) -> Tensor:
        where = torch.randperm(8, generator=torch.Generator().manual_seed(seed + epoch))[i : i + 1]
        read = memory.read(where, epoch)
        memory.write(where, epoch, 0.5 * read + 0.5 * draws(seed + 10 * epoch + i, 1, shape=shape))
        return read

    moments = [(epoch, i) for epoch in range(5) for i in range(8)]
    memory, restored = (PerturbationMemory(8, shape, EPS, dtype=dtype) for _ in range(2))
    for epoch, i in (moment for moment in moments if moment < stop):
        step(memory, epoch, i)
    restored.write(torch.arange(8), 7, draws(seed, 8, shape=shape))  # what was there before goes away
    state = memory.state(stop[0])
    restored.load_state(state)
    restored.check_available(stop[0])
    assert all(torch.equal(a, b) for a, b in zip(state.values(), restored.state(stop[0]).values(), strict=True))
    for epoch, i in (moment for moment in moments if moment >= stop):
        assert torch.equal(step(memory, epoch, i), step(restored, epoch, i))
    assert torch.equal(everything(memory, 5), everything(restored, 5))


def test_the_state_leaves_later_epochs_out(memory: PerturbationMemory) -> None:
    memory.write(torch.arange(10), 0, draws(0, 10))
    finished = memory.state(0)
    memory.write(index(1, 2), 1, draws(1, 2))
    assert all(torch.equal(a, b) for a, b in zip(finished.values(), memory.state(0).values(), strict=True))
    assert memory.state(1)["tags"][:, 0].tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert PerturbationMemory(2, (3,), EPS).state(0)["tags"].tolist() == [[-1, 0], [-1, 0]]


@pytest.mark.parametrize("byte", [0, 5, 8, 11, 12, 13, 14, 15, 16, 19])
@pytest.mark.parametrize("epoch", [0, 1])
def test_any_flipped_bit_is_found_and_named(memory: PerturbationMemory, byte: int, epoch: int) -> None:
    for e in range(epoch + 1):
        memory.write(torch.arange(10), e, draws(e, 10))
    for bit in range(8):
        row(memory, epoch, 6)[byte] ^= 1 << bit
        assert memory.read(index(5, 7), epoch + 1).any()
        with refused("memory-row-damaged", sample=6):
            everything(memory, epoch + 1)
        with refused("memory-row-damaged", sample=6):
            memory.state(epoch)
        row(memory, epoch, 6)[byte] ^= 1 << bit
    assert everything(memory, epoch + 1).any()


def test_a_flipped_bit_in_a_row_never_written_is_found(memory: PerturbationMemory) -> None:
    row(memory, 1, 4)[2] = 1
    with refused("memory-row-damaged", sample=4, damage="never-written"):
        everything(memory, 0)


def test_swapped_rows_are_named(memory: PerturbationMemory) -> None:
    memory.write(torch.arange(10), 0, draws(0, 10))
    mine, other = row(memory, 0, 2).copy(), row(memory, 0, 5).copy()
    row(memory, 0, 2)[:], row(memory, 0, 5)[:] = other, mine
    with refused("memory-row-damaged", sample=2, damage="sample"):
        everything(memory, 1)


def test_swapped_generations_are_named(memory: PerturbationMemory) -> None:
    memory.write(torch.arange(10), 0, draws(0, 10))
    row(memory, 1, 2)[:] = row(memory, 0, 2)
    with refused("memory-row-damaged", sample=2, damage="generation"):
        memory.read(index(2), 2)


def test_damage_in_a_saved_state_is_named_and_changes_nothing() -> None:
    memory = PerturbationMemory(10, SHAPE, EPS)
    memory.write(torch.arange(10), 0, draws(0, 10))
    before = everything(memory, 1)
    for name, place, change in (
        ("values", (4, 1, 1), 1),
        ("tags", (4, 0), 1),
        ("tags", (4, 1), 1),
        ("tags", (4, 0), -1),
    ):
        state = {key: value.clone() for key, value in memory.state(0).items()}
        state[name][place] += change
        with refused("memory-row-damaged", sample=4):
            memory.load_state(state)
    for column, value in ((0, -2), (0, 2**32 - 1), (1, -1), (1, 2**32)):
        state = {key: value.clone() for key, value in memory.state(0).items()}
        state["tags"][4, column] = value
        with refused("memory-state-damaged", sample=4):
            memory.load_state(state)
    assert torch.equal(everything(memory, 1), before)


@pytest.mark.parametrize(
    "other",
    [
        PerturbationMemory(9, SHAPE, EPS),
        PerturbationMemory(10, (3, 2), EPS),
        PerturbationMemory(10, SHAPE, 0.2),
        PerturbationMemory(10, SHAPE, EPS, dtype="fp16"),
    ],
)
def test_a_state_of_another_memory_is_refused(other: PerturbationMemory) -> None:
    memory = PerturbationMemory(10, SHAPE, EPS)
    with refused("memory-state-other"):
        memory.load_state(other.state(0))
    with refused("memory-state-incomplete"):
        memory.load_state({"values": other.state(0)["values"]})


def test_an_overwritten_generation_is_refused(memory: PerturbationMemory) -> None:
    for epoch in range(3):
        memory.write(torch.arange(10), epoch, draws(epoch, 10))
    memory.write(index(8), 3, draws(3, 1))
    for epoch in (3, 4):
        memory.check_available(epoch)
    for epoch in (0, 1, 2):
        with refused("memory-overwritten", epoch=epoch):
            memory.check_available(epoch)
    with refused("memory-overwritten", sample=8, epoch=2):
        everything(memory, 2)
    assert everything(memory, 3).any()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused_and_nothing_is_written(memory: PerturbationMemory, wrong: float) -> None:
    delta = draws(0, 3)
    delta[1, 0, 2] = wrong
    with refused("memory-not-finite", sample=7):
        memory.write(index(2, 7, 9), 0, delta)
    assert not everything(memory, 1).any()


def test_wrong_shapes_and_samples_are_refused_and_nothing_is_written(memory: PerturbationMemory) -> None:
    with refused("memory-delta-range", sample=7):
        memory.write(index(2, 7), 0, torch.tensor([0.3, -0.3006])[:, None, None].expand(2, *SHAPE))
    with refused("memory-delta-shape", shape=(2, 3, 2)):
        memory.write(index(2, 7), 0, torch.zeros(2, 3, 2))
    with refused("memory-index-twice", sample=7):
        memory.write(index(7, 2, 7), 0, draws(0, 3))
    for sample in (10, -1):
        with refused("memory-index-range", sample=sample):
            memory.write(index(0, sample), 0, draws(0, 2))
        with refused("memory-index-range", sample=sample):
            memory.read(index(0, sample), 0)
    with refused("memory-index-type"):
        memory.read(torch.tensor([0.0]), 0)
    with refused("memory-epoch", epoch=-1):
        memory.write(index(0), -1, draws(0, 1))
    assert not everything(memory, 9).any()


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_settings_are_refused(eps: float) -> None:
    with refused("memory-eps-range"):
        PerturbationMemory(10, SHAPE, eps)
    with refused("memory-empty", n=0):
        PerturbationMemory(0, SHAPE, EPS)
    with refused("unknown-dtype-of-the-memory", name="int4"):
        PerturbationMemory(10, SHAPE, EPS, dtype="int4")


def test_a_pixel_of_mnist_costs_little_more_than_a_byte() -> None:
    memory = PerturbationMemory(100, (1, 28, 28), 0.4)
    assert 1 < memory.bytes_per_value < 1.05
    assert memory.nbytes == 2 * 100 * 784 * memory.bytes_per_value


def test_a_row_is_guarded_by_the_checksum_of_all_that_is_in_it() -> None:
    memory = PerturbationMemory(10, SHAPE, EPS)
    memory.write(index(6), 4, draws(0, 1))
    stored = row(memory, 4, 6).tobytes()
    assert np.frombuffer(stored[-12:-4], "<u4").tolist() == [6, 5]
    assert np.frombuffer(stored[-4:], "<u4")[0] == zlib.crc32(stored[:-4], memory._format.seed)


def test_a_row_torn_by_a_crash_is_written_again(memory: PerturbationMemory) -> None:
    for epoch in range(2):
        memory.write(index(*range(6)), epoch, draws(epoch, 6))
        row(memory, epoch, 3)[:4] ^= 255  # half a row reached the disk
        memory.check_available(epoch)
        expected = memory.read(index(*range(6)), epoch)
        assert bool(expected.any()) == (epoch > 0)
        memory.write(index(*range(6)), epoch, draws(epoch, 6))
        assert memory.read(index(*range(6)), epoch + 1).any()
