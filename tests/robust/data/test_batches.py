"""Batches: who is in them, when they are, and what they draw."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import Batch, batches, epoch_batches, epoch_order, steps_per_epoch
from sihg.robust.data.samples import as_samples
from sihg.robust.methods import PGDAT, Natural
from tests.refused import refused
from tests.robust.methods.nets import gradients, net, one_batch, samples


def test_a_partial_last_batch_is_kept() -> None:
    x, y = samples(23)
    seen = list(batches((x, y), size=10, epochs=2, seed=5))
    assert [len(b.x) for b in seen] == [10, 10, 3] * 2
    assert [b.size for b in seen] == [10, 10, 3] * 2
    assert [b.step for b in seen] == list(range(6))
    assert [b.epoch for b in seen] == [0, 0, 0, 1, 1, 1]
    assert [b.time for b in seen] == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3], abs=1e-15)
    for b in seen:
        assert torch.equal(b.x, x[b.index])
        assert torch.equal(b.y, y[b.index])
        assert b.move is None
    for epoch in range(2):
        assert torch.equal(torch.cat([b.index for b in seen if b.epoch == epoch]), epoch_order(23, 5, epoch))


@pytest.mark.parametrize("size", [1, 7, 23, 50])
def test_the_order_does_not_depend_on_the_size(size: int) -> None:
    seen = list(batches(samples(23), size=size))
    assert len(seen) == steps_per_epoch(23, size)
    assert torch.equal(torch.cat([b.index for b in seen]), epoch_order(23, 0, 0))


def test_an_epoch_can_be_entered_anywhere() -> None:
    data = as_samples(samples(23))
    augment = Augment(crop=1)
    whole = [b.lanes[0] for b in epoch_batches(data, size=5, seed=1, epoch=3, first=0, augment=augment)]
    rest = [b.lanes[0] for b in epoch_batches(data, size=5, seed=1, epoch=3, first=2, augment=augment)]
    assert [b.step for b in rest] == [b.step for b in whole[2:]] == [17, 18, 19]
    for one, other in zip(rest, whole[2:], strict=True):
        assert torch.equal(one.x, other.x)


def test_images_become_floats_and_other_forms_of_data_are_the_same() -> None:
    x = torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2) * 20
    y = torch.tensor([0, 1, 0])
    (pair,) = batches((x, y), size=3)
    (own,) = batches(TensorDataset(x, y), size=3)
    assert pair.x.dtype == torch.float32
    assert torch.equal(pair.x, x[pair.index].float() / 255)
    assert torch.equal(own.x, pair.x)


def test_draws_differ_by_purpose_epoch_step_and_seed_and_repeat() -> None:
    seen = list(batches(samples(12), size=6, epochs=2)) + list(batches(samples(12), size=6, seed=1))
    again = list(batches(samples(12), size=6, epochs=2)) + list(batches(samples(12), size=6, seed=1))
    first, second = ([_draws(b) for b in some] for some in (seen, again))
    assert first == second
    flat = [number for some in first for number in some]
    assert len(set(flat)) == len(flat) == 6 * 2


def _draws(batch: Batch) -> list[float]:
    generators = [batch.draw("start"), batch.draw("delta")]
    return [float(torch.rand((), generator=draw, dtype=torch.float64)) for draw in generators]


def test_augmented_batches_carry_their_move() -> None:
    x, y = samples(20)
    plain = list(batches((x, y), size=8, epochs=2))
    moved = list(batches((x, y), size=8, epochs=2, augment=Augment(crop=2)))
    for one, other in zip(plain, moved, strict=True):
        assert other.move is not None
        assert torch.equal(one.index, other.index)
        assert torch.equal(other.move.apply(one.x), other.x)
    shifts = [(b.move.down * 10 + b.move.right).tolist() for b in moved if b.move is not None]
    assert shifts[0] != shifts[1]
    assert shifts[0] != shifts[3]


@pytest.mark.parametrize("count", [1, 2, 8, 16, 64])
def test_the_gradients_of_lanes_add_up(count: int) -> None:
    whole = net("smooth")
    batch = one_batch(12)
    Natural().step(whole, batch, torch.optim.SGD(whole.parameters(), lr=0.0))
    split = net("smooth")
    total = torch.zeros_like(gradients(split))
    lanes = list(batch.lanes(count))
    for lane in lanes:
        Natural().step(split, lane, torch.optim.SGD(split.parameters(), lr=0.0))
        total += gradients(split)
    torch.testing.assert_close(total, gradients(whole), rtol=0, atol=1e-12)
    assert [lane.lane for lane in lanes] == list(range(min(count, 12)))
    for lane in lanes:
        assert set(lane.index.tolist()) == {i for i in range(12) if i % count == lane.lane}
        assert torch.equal(batch.index[lane.part], lane.index)  # in the order of the batch


@pytest.mark.parametrize("own", [(0, 1, 2, 3), (1, 3), (2,)])
def test_an_epoch_yields_the_lanes_that_are_asked_for(own: tuple[int, ...]) -> None:
    """Those of the whole batch, without lanes that have no sample in it."""
    data, augment = as_samples(samples(11)), Augment(crop=1)
    wholes = [b.lanes[0] for b in epoch_batches(data, size=4, seed=1, epoch=2, first=0, augment=augment)]
    found = list(epoch_batches(data, size=4, seed=1, epoch=2, first=0, augment=augment, lanes=own, of=4))
    assert [(b.size, b.time) for b in found] == [(whole.size, whole.time) for whole in wholes]
    for batch, whole in zip(found, wholes, strict=True):
        expected = [lane for lane in whole.lanes(4) if lane.lane in own]
        assert [lane.lane for lane in batch.lanes] == [lane.lane for lane in expected]
        for lane, other in zip(batch.lanes, expected, strict=True):
            assert torch.equal(lane.x, other.x)
            assert torch.equal(lane.y, other.y)
            assert torch.equal(lane.index, other.index)
            assert (lane.size, lane.step, lane.time) == (other.size, other.step, other.time)
            assert torch.equal(lane.uniform("start"), other.uniform("start"))
    assert any(len(batch.lanes) < len(own) for batch in found)


def test_lanes_keep_the_moves_of_their_images() -> None:
    x, y = samples(9)
    (batch,) = batches((x, y), size=9, augment=Augment(crop=2))
    for lane in batch.lanes(4):
        assert lane.move is not None
        assert torch.equal(lane.move.apply(x[lane.index]), lane.x)
        assert lane.size == 9
        whole, mine = batch.other_move(), lane.other_move()
        assert whole is not None
        assert mine is not None
        assert torch.equal(mine.down, whole.down[lane.part])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_lanes_have_the_draws_of_their_batch(norm: str) -> None:
    batch, method = one_batch(12), PGDAT(eps=0.2, norm=norm)
    feasible, eps = method.ball(batch)
    whole = method.start(batch, feasible, eps)
    lanes = [(lane, method.ball(lane)[0]) for lane in batch.lanes(8)]
    for lane, own in lanes:
        torch.testing.assert_close(method.start(lane, own, eps), whole[lane.part], rtol=0, atol=1e-15)
    rows = torch.cat([torch.arange(12)[lane.part] for lane, _ in lanes])
    assert torch.equal(rows.sort().values, torch.arange(12))
    centre, radii = torch.full_like(batch.x, 0.01), torch.linspace(0.01, 0.1, 12).view(12, 1, 1, 1).double()
    near = method.start(batch, feasible, radii, centre)
    for lane, own in lanes:
        found = method.start(lane, own, radii[lane.part], centre[lane.part])
        torch.testing.assert_close(found, near[lane.part], rtol=0, atol=1e-15)


def test_settings_that_give_no_batch() -> None:
    with refused("batch-size-range", batch_size=0):
        next(batches(samples(3), size=0))
    with refused("samples-empty"):
        next(batches(samples(0), size=3))
    with refused("augment-shape", shape=(6,)):
        next(batches(samples(3, (6,)), size=3, augment=Augment()))


def test_a_batch_of_your_own() -> None:
    """What it is not told, it takes from its samples and its epoch."""
    batch = Batch(torch.rand(5, 3), torch.zeros(5, dtype=torch.int64), torch.arange(5), epoch=2)
    assert (batch.size, batch.time, batch.step, batch.move) == (5, 2.0, 0, None)
    log = PGDAT(eps=0.1, steps=1, ramp=4).step(nn.Linear(3, 2), batch, torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert log.samples == 5


@pytest.mark.parametrize(("x", "y", "index"), [(0, 0, 0), (3, 2, 3), (3, 3, 1)])
def test_a_batch_of_nothing_or_of_unequal_parts_is_refused(x: int, y: int, index: int) -> None:
    with refused("batch-rows", rows=(x, y, index)):
        Batch(torch.rand(x, 3), torch.zeros(y, dtype=torch.int64), torch.arange(index), epoch=0)
