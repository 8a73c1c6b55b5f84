"""ATTA against its listing, and what it is when nothing is carried over."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import Batch, batches
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import ATTA, FGSMAT, MSIHG, PGDAT
from tests.refused import refused
from tests.robust.methods.nets import IMAGE, net, samples, sgd, watched, weights

EPS = 0.25  # a power of two, so that delta / eps and back are exact


def fp32(n: int) -> PerturbationMemory:
    return PerturbationMemory(n, IMAGE, EPS, dtype="fp32")


@pytest.mark.parametrize(("kind", "norm"), [("plain", "linf"), ("bn", "linf"), ("plain", "l2"), ("plain", "l1")])
def test_with_a_reset_every_epoch_it_is_pgd_at(kind: str, norm: str) -> None:
    """From noise, for any memory: the same weights to the bit, over two epochs."""
    model, twin, memory = net(kind), net(kind), fp32(16)
    ours = ATTA(eps=EPS, norm=norm, steps=3, step_size=2.5 * EPS / 3, noise=EPS, reset=1, memory=memory)
    theirs, a, b = PGDAT(eps=EPS, norm=norm, steps=3), sgd(model), sgd(twin)
    for batch in batches(samples(16), size=4, epochs=2):
        log, same = ours.step(model, batch, a), theirs.step(twin, batch, b)
        assert (log.loss, log.passes) == (same.loss, same.passes)
    assert torch.equal(weights(model), weights(twin))


def test_one_long_step_from_zero_is_fgsm_at() -> None:
    model, twin = net("plain"), net("plain")
    ours, theirs = ATTA(eps=EPS, step_size=EPS, reset=1), FGSMAT(eps=EPS)
    a, b = sgd(model), sgd(twin)
    for batch in batches(samples(16), size=4, epochs=2):
        ours.step(model, batch, a)
        theirs.step(twin, batch, b)
    assert torch.equal(weights(model), weights(twin))


@pytest.mark.parametrize("augment", [None, Augment(crop=2)])
def test_it_is_msi_hg_without_tau_noise_and_theta(augment: Augment | None) -> None:
    """The control of the hybrid step: the same weights and the same memory to the bit, over five epochs."""
    model, twin, one, other = (*(net("plain", dtype=torch.float32) for _ in range(2)), fp32(16), fp32(16))
    ours = ATTA(eps=EPS, steps=2, reset=3, memory=one)
    theirs = MSIHG(eps=EPS, tau=2 * EPS, noise=0.0, steps=2, step_size=EPS / 2, reset=3, memory=other)
    a, b = sgd(model), sgd(twin)
    for batch in batches(samples(16, dtype=torch.float32), size=4, epochs=5, augment=augment):
        ours.step(model, batch, a)
        theirs.step(twin, batch, b)
    assert torch.equal(weights(model), weights(twin))
    assert torch.equal(one.read(torch.arange(16), 5), other.read(torch.arange(16), 5))


def listing(model: nn.Module, data: list[Batch], n: int, steps: int, reset: int, lr: float) -> list[Tensor]:
    """The method one sample at a time, with plain SGD by hand."""
    kept = [torch.zeros(IMAGE, dtype=torch.float64) for _ in range(n)]
    for batch in data:
        points = []
        for x, y, i in zip(batch.x, batch.y, batch.index.tolist(), strict=True):
            delta = torch.zeros_like(x) if batch.epoch % reset == 0 else kept[i]
            for _ in range(steps):
                point = (x + delta)[None].requires_grad_()
                (g,) = torch.autograd.grad(cross_entropy(model(point), y[None]), point)
                delta = (delta + EPS / 2 * g[0].sign()).clamp(-EPS, EPS)
                delta = (x + delta).clamp(0, 1) - x
            kept[i] = delta.float().double()
            points.append(x + delta)
        model.zero_grad()
        cross_entropy(model(torch.stack(points)), batch.y).backward()
        for p in model.parameters():
            assert p.grad is not None
            p.data.sub_(lr * p.grad)
    return kept


@pytest.mark.parametrize("steps", [1, 3])
def test_four_epochs_are_the_listing(steps: int) -> None:
    model, twin, memory = net("smooth"), net("smooth"), fp32(18)
    data = list(batches(samples(18), size=8, epochs=4))
    method, optimizer = ATTA(eps=EPS, steps=steps, reset=3, memory=memory), torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in data:
        method.step(model, batch, optimizer)
    expected = listing(twin, data, 18, steps, 3, 0.1)
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-8)  # both rounded to float32 in between
    torch.testing.assert_close(memory.read(torch.arange(18), 4).double(), torch.stack(expected), rtol=0, atol=1e-7)


def test_an_attack_goes_on_where_the_last_epoch_ended() -> None:
    model, memory, starts = net("plain"), fp32(10), []
    for batch in batches(samples(10), size=10, epochs=4):
        stored = memory.read(batch.index, batch.epoch).double()
        with watched(model) as points:
            ATTA(eps=EPS, reset=2, memory=memory).step(model, batch, sgd(model))
        start = torch.zeros_like(stored) if batch.epoch % 2 == 0 else stored
        torch.testing.assert_close(points.inputs[0], (batch.x + start).clamp(0, 1), rtol=0, atol=1e-7)
        starts.append(float(start.abs().max()))
    assert [size > 0 for size in starts] == [False, True, False, True]


def test_an_int8_memory_is_too_coarse_for_l2() -> None:
    with refused("memory-dtype-norm", dtype="int8", norm="l2"):
        ATTA(eps=EPS, norm="l2", memory=PerturbationMemory(3, IMAGE, EPS))
