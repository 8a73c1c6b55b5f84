"""FGSM-PGI against its listing, its parts without the others, and the bytes of its memory."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import Batch, batches
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import ATTA, FGSMPGI, MSIHG, FastAT
from sihg.robust.methods.fgsm_pgi import MAX_MOMENTUM
from sihg.robust.methods.memory_method import MemoryMethod
from sihg.robust.threat import Ball, Feasible
from tests.refused import refused
from tests.robust.methods.nets import CLASSES, IMAGE, net, samples, sgd, watched, weights

EPS = 0.25  # a power of two, so that delta / eps and back are exact
ROW = (2, *IMAGE[1:])  # a perturbation and its momentum


def smoothed(logits: Tensor, y: Tensor, share: float) -> Tensor:
    """The mean cross-entropy with labels that keep 1 - share, the rest spread over all classes."""
    labels = (1 - share) * torch.eye(CLASSES, dtype=logits.dtype)[y] + share / CLASSES
    return -(labels * softmax(logits, 1).log()).sum(1).mean()


@dataclass
class Listing:
    """FGSM-MEP one sample at a time, with plain SGD by hand."""

    model: nn.Module
    n: int
    reset: int
    decay: float = 0.3
    weight: float = 10.0
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        self.kept = [torch.zeros(IMAGE, dtype=torch.float64) for _ in range(self.n)]
        self.momentum = [torch.zeros(IMAGE, dtype=torch.float64) for _ in range(self.n)]

    def step(self, batch: Batch, lr: float) -> None:
        corners, points, priors = batch.normal("start").sign() * EPS, [], []
        for row, (x, y, i) in enumerate(zip(batch.x, batch.y, batch.index.tolist(), strict=True)):
            low, high = (-x).clamp(min=-EPS), (1 - x).clamp(max=EPS)
            is_new = batch.epoch % self.reset == 0
            prior = (corners[row] if is_new else self.kept[i]).clamp(low, high)
            point = (x + prior)[None].requires_grad_()
            (g,) = torch.autograd.grad(smoothed(self.model(point), y[None], self.smoothing), point)
            old = torch.zeros_like(x) if is_new else self.momentum[i]
            m = (g[0] / g[0].abs().mean() + self.decay * old).clamp(-MAX_MOMENTUM["linf"], MAX_MOMENTUM["linf"])
            points.append(x + (prior + EPS * g[0].sign()).clamp(low, high))
            priors.append(x + prior)
            self.kept[i] = (prior + EPS * m.sign()).clamp(low, high).float().double()
            self.momentum[i] = m.float().double()
        new, old = self.model(torch.stack(points)), self.model(torch.stack(priors))
        loss = smoothed(new, batch.y, self.smoothing) + self.weight * ((new - old) ** 2).mean()
        for p, g in zip(self.model.parameters(), torch.autograd.grad(loss, list(self.model.parameters())), strict=True):
            p.data.sub_(lr * g)


def test_four_epochs_are_the_listing() -> None:
    model, memory = net("smooth"), PerturbationMemory(18, ROW, EPS, dtype="fp32")
    twin = Listing(net("smooth"), 18, reset=3)
    method = FGSMPGI(eps=EPS, reset=3, label_smoothing=0.1, memory=memory)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches(samples(18), size=8, epochs=4):
        method.step(model, batch, optimizer)
        twin.step(batch, lr=0.05)
    torch.testing.assert_close(weights(model), weights(twin.model), rtol=0, atol=1e-8)
    delta, momentum = memory.read(torch.arange(18), 4).double().chunk(2, 1)
    torch.testing.assert_close(delta, torch.stack(twin.kept), rtol=0, atol=1e-7)
    torch.testing.assert_close(momentum * 8 / EPS, torch.stack(twin.momentum), rtol=1e-5, atol=1e-6)
    assert float((weights(model) - weights(net("smooth"))).abs().max()) > 0.01


@pytest.mark.parametrize("augment", [None, Augment(crop=2)])
def test_without_momentum_and_regulariser_it_is_atta_from_the_same_memory(augment: Augment | None) -> None:
    """FGSM-EP is one step of ATTA of length eps: the same weights and memory to the bit, from the second epoch on."""
    models = [net("plain", dtype=torch.float32) for _ in range(2)]
    memories = [PerturbationMemory(16, IMAGE, EPS) for _ in range(2)]
    first = (2 * torch.rand(16, *IMAGE, generator=torch.Generator().manual_seed(1)) - 1) * EPS
    for memory in memories:
        memory.write(torch.arange(16), 0, first)
    methods = (
        FGSMPGI(eps=EPS, momentum_decay=0.0, regularization=0.0, reset=0, memory=memories[0]),
        ATTA(eps=EPS, step_size=EPS, reset=0, memory=memories[1]),
    )
    optimizers = [sgd(model) for model in models]
    for batch in list(batches(samples(16, dtype=torch.float32), size=4, epochs=4, augment=augment))[4:]:
        logs = [m.step(model, batch, o) for m, model, o in zip(methods, models, optimizers, strict=True)]
        assert logs[0].passes == logs[1].passes
        assert logs[0].loss == logs[1].loss
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert torch.equal(*(memory.read(torch.arange(16), 4) for memory in memories))


class Corners(FastAT):
    """Fast AT that starts at random corners of the ball."""

    def start(self, batch: Batch, feasible: Feasible, radius: float | Tensor, centre: Tensor | None = None) -> Tensor:
        assert centre is None
        return feasible.project_(batch.normal("start").sign_().mul_(radius))


def test_without_memory_and_regulariser_it_is_fast_at_from_corners() -> None:
    """Whatever the momentum: it changes only what is stored."""
    model, twin = net("plain"), net("plain")
    ours, theirs = FGSMPGI(eps=EPS, regularization=0.0), Corners(eps=EPS, alpha=1.0)
    a, b = sgd(model), sgd(twin)
    for batch in batches(samples(16), size=4, epochs=2):
        log, same = ours.step(model, batch, a), theirs.step(twin, batch, b)
        assert (log.loss, log.passes) == (same.loss, same.passes)
    assert torch.equal(weights(model), weights(twin))


@pytest.mark.parametrize(("weight", "passes"), [(0.0, 2), (10.0, 3)])
def test_the_regulariser_costs_a_pass(weight: float, passes: int) -> None:
    (batch,) = batches(samples(12), size=12)
    model = net("bn")
    with watched(model) as points:
        log = FGSMPGI(eps=EPS, regularization=weight).step(model, batch, sgd(model))
    assert log.passes == points.rows_with_gradient() == passes * 12


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_what_is_stored_is_in_the_ball(norm: str) -> None:
    memory = PerturbationMemory(24, ROW, EPS, dtype="int8" if norm == "linf" else "fp16")
    model = net("plain")
    method, optimizer = FGSMPGI(eps=EPS, norm=norm, memory=memory), sgd(model)
    for batch in batches(samples(24), size=8, epochs=3):
        log = method.step(model, batch, optimizer)
        assert 0 < (log.moved or 0) <= 2
        delta = memory.read(batch.index, batch.epoch + 1).double().chunk(2, 1)[0]
        assert float(Ball(EPS, norm).lengths(delta).max()) <= EPS * 1.01
        assert float((batch.x + delta).min()) > -EPS / 100
    histogram = method.memory_row(2)
    assert sum(histogram.values()) == pytest.approx(1)
    delta = memory.read(torch.arange(24), 3).chunk(2, 1)[0]
    full = (Ball(EPS, norm).lengths(delta) if norm != "linf" else delta.abs().flatten()) >= 0.9 * EPS
    assert list(histogram.values())[-1] == pytest.approx(float(full.float().mean()), abs=0.02)


def rows_after(epochs: int, dtype: str) -> tuple[Tensor, Tensor]:
    """The perturbations and the momentum in a memory after so many epochs with fixed weights."""
    memory, model = PerturbationMemory(64, ROW, EPS, dtype=dtype), net("plain", dtype=torch.float32)
    method = FGSMPGI(eps=EPS, momentum_decay=0.7, bounds=None, memory=memory)
    for batch in batches(samples(64, dtype=torch.float32), size=16, epochs=epochs):
        method.step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
    delta, momentum = memory.read(torch.arange(64), epochs).chunk(2, 1)
    return delta, momentum


def share_that_differs(epochs: int) -> float:
    """The share of entries that differ between a memory of one byte per entry and one of 32 bits."""
    return float((rows_after(epochs, "int8")[0] != rows_after(epochs, "fp32")[0]).float().mean())


def test_one_update_from_a_momentum_of_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second epoch is the first that reads a momentum. One byte needs the cut: its steps are the range / 127."""
    assert MAX_MOMENTUM["linf"] == 8
    assert share_that_differs(2) < 0.01
    monkeypatch.setitem(MAX_MOMENTUM, "linf", 1024.0)
    assert share_that_differs(2) > 0.05


def test_differences_of_one_byte_grow_over_epochs() -> None:
    """An entry whose sign differs changes the gradients of all others of its image."""
    assert share_that_differs(2) < share_that_differs(6) < 0.1


def test_the_cut_alone_changes_no_perturbation_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 32 bits; it applies to some entries, and all of them keep their sign."""
    cut, momentum = rows_after(6, "fp32")
    assert 0.01 < float((momentum.abs() == EPS).float().mean()) < 0.1
    monkeypatch.setitem(MAX_MOMENTUM, "linf", 1024.0)
    assert torch.equal(rows_after(6, "fp32")[0], cut)


@pytest.mark.parametrize(("method", "row"), [(FGSMPGI, IMAGE), (ATTA, ROW), (MSIHG, (1, 8, 4))])
@pytest.mark.parametrize("reset", [0, 40])
def test_a_memory_with_rows_of_another_shape_is_refused(
    method: type[MemoryMethod], row: tuple[int, ...], reset: int
) -> None:
    (batch,) = batches(samples(12), size=12)
    model, memory = net("plain"), PerturbationMemory(12, row, EPS)
    wanted = ROW if method is FGSMPGI else IMAGE
    with refused("memory-row-shape", wanted=wanted, shape=row):
        method(eps=EPS, reset=reset, memory=memory).step(model, batch, sgd(model))


def test_the_bytes_of_a_row() -> None:
    """One byte per value, generation, and part; 12 for the tag: 4.9 GB for the 100,000 images of Tiny-ImageNet."""
    shape = (3, 64, 64)
    with_momentum = PerturbationMemory(5, FGSMPGI(eps=EPS).row_shape(shape), EPS)
    without = PerturbationMemory(5, FGSMPGI(eps=EPS, momentum_decay=0.0).row_shape(shape), EPS)
    assert with_momentum.nbytes == 5 * 2 * (2 * 3 * 64 * 64 + 12)
    assert without.nbytes == 5 * 2 * (3 * 64 * 64 + 12)
    values, tags, eps = 5 * 2 * 3 * 64 * 64, 5 * 2 * 8, 8  # a checkpoint: one generation, two numbers per tag
    assert sum(saved.nbytes for saved in with_momentum.state(1).values()) == values + tags + eps
