"""Batches of the samples that a process owns: every sample once, the same steps everywhere, none empty."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from sihg.robust.data.batches import epoch_order
from sihg.robust.data.sharded_sampler import ShardedBatchSampler
from sihg.robust.memory import PerturbationMemory
from tests.refused import refused


def of_all(n: int, size: int, world_size: int, epoch: int = 0) -> list[list[list[int]]]:
    """Return the batches of each process."""
    samplers = [ShardedBatchSampler(n, size, rank, world_size, seed=5) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


@settings(deadline=None)
@given(
    n=st.integers(1, 300), size=st.integers(1, 80), world_size=st.sampled_from([1, 2, 4, 8]), epoch=st.integers(0, 9)
)
def test_every_sample_comes_once_to_its_owner(n: int, size: int, world_size: int, epoch: int) -> None:
    steps = -(-n // size)
    if n // world_size < steps:
        with refused("sampler-few-samples", n=n, steps=steps, world_size=world_size):
            ShardedBatchSampler(n, size, 0, world_size)
        return
    found = of_all(n, size, world_size, epoch)
    for rank, batches in enumerate(found):
        assert len(batches) == steps == len(ShardedBatchSampler(n, size, rank, world_size))
        assert all(batches)
        assert all(i % world_size == rank for batch in batches for i in batch)
    assert sorted(i for batches in found for batch in batches for i in batch) == list(range(n))
    sampler = ShardedBatchSampler(n, size, 0, world_size, seed=5)
    sampler.set_epoch(epoch)
    assert sampler.sizes == [sum(len(batches[step]) for batches in found) for step in range(steps)]


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_global_batches_are_those_of_one_process(world_size: int) -> None:
    for epoch in range(3):
        found = of_all(1000, 96, world_size, epoch)
        for step, index in enumerate(epoch_order(1000, 5, epoch).split(96)):
            assert sorted(i for batches in found for i in batches[step]) == sorted(index.tolist())
    assert of_all(1000, 96, 2, 0) != of_all(1000, 96, 2, 1)


def test_a_batch_that_would_be_empty_gets_a_sample_of_the_nearest() -> None:
    """65 samples in batches of 64: the last has one, of one process."""
    found = of_all(65, 64, 2)
    assert sorted(len(batches[1]) for batches in found) == [1, 1]
    assert ShardedBatchSampler(65, 64, 0, 2, seed=5).sizes == [63, 2]


def test_it_works_with_a_data_loader_and_a_memory() -> None:
    x, index = torch.rand(40, 2), torch.arange(40)
    memories = [PerturbationMemory(40, (2,), 0.1, rank=rank, world_size=4) for rank in range(4)]
    for rank, memory in enumerate(memories):
        sampler = ShardedBatchSampler(40, 16, rank, 4)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for rows, numbers in DataLoader(TensorDataset(x, index), batch_sampler=sampler):
                if epoch:
                    assert memory.read(numbers, epoch).all()
                memory.write(numbers, epoch, torch.full_like(rows, 0.1))


def test_without_processes_it_is_one() -> None:
    sampler = ShardedBatchSampler(10, 4)
    assert (sampler.rank, sampler.world_size, sampler.sizes) == (0, 1, [4, 4, 2])
    assert "process 0 of 1" in repr(sampler)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 3), (2, 2), (-1, 2), (0, 0)])
def test_processes_that_cannot_own_samples_are_refused(rank: int, world_size: int) -> None:
    with refused("process-rank", rank=rank, world_size=world_size):
        ShardedBatchSampler(10, 4, rank, world_size)
    with refused("batch-size-range"):
        ShardedBatchSampler(10, 0)
