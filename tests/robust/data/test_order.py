"""The order of an epoch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sihg.core.processes import SHARDS
from sihg.robust.data.batches import epoch_order


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 700), st.integers(0, 2**40), st.integers(0, 500))
def test_every_sample_once_and_the_same_again(n: int, seed: int, epoch: int) -> None:
    first = epoch_order(n, seed, epoch)
    assert first.dtype == torch.int64
    assert torch.equal(first.sort().values, torch.arange(n))
    assert torch.equal(epoch_order(n, seed, epoch), first)


def test_epochs_and_seeds_have_their_own_orders() -> None:
    orders = [epoch_order(500, seed, epoch) for seed in range(3) for epoch in range(3)]
    for i, one in enumerate(orders):
        assert all(float((one == other).double().mean()) < 0.03 for other in orders[:i])


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    epoch_order(100, 0, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("n", "slack"), [(64 * 20, 1), (64 * 20 + 37, 2)])
@pytest.mark.parametrize("size", [1, 64, 150, 500])
def test_consecutive_parts_have_near_equal_shares_of_the_shards(n: int, slack: int, size: int) -> None:
    """A part is a window of keys, and a shard has its keys in equal distances."""
    places = epoch_order(n, 3, 1)
    for part in places.split(size):
        share = torch.bincount(part % SHARDS, minlength=SHARDS)
        assert int(share.max() - share.min()) <= slack
    if n % SHARDS:  # the shards that have one more sample do not keep it for the end
        assert int((places[-(n % SHARDS) :] % SHARDS >= n % SHARDS).sum()) > 0
    halves = [epoch_order(n, 3, epoch)[: n // 2] for epoch in range(8)]  # and yet a sample may come at any time
    early = torch.bincount(torch.cat(halves), minlength=n)
    assert int((early == 8).sum()) < 0.03 * n
    assert int((early == 0).sum()) < 0.03 * n
