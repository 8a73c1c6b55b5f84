"""PGD, FGSM, Fast AT and natural training as equations."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from sihg.robust.gradients import ascend, frozen_statistics, input_gradient, slope
from sihg.robust.methods import DAT, FGSMAT, MSIHG, PGDAT, TRADES, YOPO, FastAT, FreeAT, Method, Natural
from sihg.robust.threat import Ball
from tests.robust.methods.nets import gradient_after, gradients, net, one_batch, sgd, start_noise, watched, weights

EPS = 0.2


def test_natural_training_is_the_mean_loss() -> None:
    batch, model, twin = one_batch(), net("bn"), net("bn")
    cross_entropy(twin(batch.x), batch.y).backward()
    got, log = gradient_after(Natural(), model, batch)
    torch.testing.assert_close(got, gradients(twin), rtol=1e-12, atol=1e-15)
    assert log.loss == pytest.approx(float(cross_entropy(twin(batch.x), batch.y).detach()), rel=1e-12)
    assert log.passes == log.samples == int(log.predicted.sum()) == 12


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("kind", ["plain", "bn"])
def test_pgd_at_is_noise_ascent_and_training_there(kind: str, norm: str) -> None:
    batch, model = one_batch(), net(kind)
    with watched(model) as points:
        log = PGDAT(eps=EPS, norm=norm, steps=4).step(model, batch, sgd(model))
    twin = net(kind)
    feasible = Ball(EPS, norm).around(batch.x)
    delta = feasible.project_(start_noise(batch, EPS, norm))
    torch.testing.assert_close(points.inputs[0], batch.x + delta, rtol=0, atol=1e-14)
    with frozen_statistics(twin):
        ascend(slope(twin, batch.x, batch.y), delta, feasible, 2.5 * EPS / 4, 4)
    torch.testing.assert_close(points.inputs[4], batch.x + delta, rtol=0, atol=1e-12)
    optimizer = sgd(twin)
    (cross_entropy(twin(batch.x + delta), batch.y, reduction="sum") / 12).backward()
    optimizer.step()
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)
    torch.testing.assert_close(list(model.buffers()), list(twin.buffers()), rtol=0, atol=1e-12)
    assert len(points.inputs) == 5
    assert log.passes == 5 * 12


def test_running_statistics_in_the_ascent() -> None:
    """Then a sample's perturbation does not depend on the others of its batch."""
    batch = one_batch()
    alone = next(lane for lane in batch.lanes(16) if lane.index[0] == batch.index[0])
    points = []
    for some in (batch, alone):
        model = net("bn").train(some is batch)  # one sample alone has no batch statistics to train with
        with watched(model) as seen:
            PGDAT(eps=EPS, steps=3, statistics="running").step(model, some, sgd(model))
        points.append(seen.inputs[3][0])
    assert torch.equal(start_noise(batch, EPS)[0], start_noise(alone, EPS)[0])
    torch.testing.assert_close(points[0], points[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "bn"])
def test_fgsm_at_is_pgd_at_with_one_step_from_zero(kind: str) -> None:
    batch, model, twin = one_batch(), net(kind), net(kind)
    with watched(model) as points:
        FGSMAT(eps=EPS).step(model, batch, sgd(model))
    from_zero = MSIHG(eps=EPS, tau=EPS, noise=0.0, steps=1, step_size=EPS)  # without a memory
    from_zero.step(twin, batch, sgd(twin))
    assert torch.equal(weights(model), weights(twin))
    fresh = net(kind)
    with frozen_statistics(fresh):
        by_hand = (batch.x + EPS * input_gradient(fresh, batch.x, batch.y).sign()).clamp(0, 1)
    assert torch.equal(points.inputs[0], batch.x)
    torch.testing.assert_close(points.inputs[1], by_hand, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", ["plain", "bn"])
def test_fast_at_is_pgd_at_with_one_step_of_five_quarters(kind: str) -> None:
    batch, model, twin = one_batch(), net(kind), net(kind)
    with watched(model) as points:
        log = FastAT(eps=EPS).step(model, batch, sgd(model))
    PGDAT(eps=EPS, steps=1, step_size=1.25 * EPS).step(twin, batch, sgd(twin))
    assert torch.equal(weights(model), weights(twin))
    noise = start_noise(batch, EPS)
    torch.testing.assert_close(points.inputs[0], (batch.x + noise).clamp(0, 1), rtol=0, atol=1e-15)
    assert log.passes == 2 * 12


RAMPED: dict[str, Callable[..., Method]] = {
    "pgd": partial(PGDAT, steps=2),
    "fgsm": FGSMAT,
    "fast": FastAT,
    "trades": partial(TRADES, steps=5),
    "dat": partial(DAT, steps=5, control_epochs=3.0),
    "yopo": partial(YOPO, outer=2, inner=2),
    "free": partial(FreeAT, replays=3),
    "msi-hg": partial(MSIHG, tau=2 * EPS, noise=EPS / 8, steps=5),
    "msi-hg, fresh": partial(MSIHG, tau=EPS / 8, noise=EPS / 8, steps=5, fresh=1.0),
}


@pytest.mark.parametrize("method", RAMPED.values(), ids=RAMPED.keys())
def test_the_ramp_grows_the_ball_linearly(method: Callable[..., Method]) -> None:
    """Each length that follows from the radius grows with it."""
    batch = one_batch()
    for time, share in ((1.0, 0.25), (3.0, 0.75), (4.0, 1.0), (9.0, 1.0)):
        later = type(batch)(**{**vars(batch), "time": time})
        model, twin = net("plain"), net("plain")
        method(eps=EPS, ramp=4.0).step(model, later, sgd(model))
        method(eps=EPS * share).step(twin, later, sgd(twin))
        assert torch.equal(weights(model), weights(twin))


def test_the_ramp_begins_without_a_perturbation() -> None:
    batch, model = one_batch(), net("plain")
    with watched(model) as points:
        PGDAT(eps=EPS, ramp=4.0, steps=2).step(model, batch, sgd(model))
    assert batch.time == 0
    assert all(torch.equal(point, batch.x) for point in points.inputs)
