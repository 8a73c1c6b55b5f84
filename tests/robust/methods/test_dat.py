"""Dynamic adversarial training: its condition, its threshold, and the samples that stop."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sihg.robust.data.batches import batches
from sihg.robust.gradients import evaluation_mode, input_gradient
from sihg.robust.methods import DAT, PGDAT
from sihg.robust.threat import Ball
from tests.robust.methods.nets import gradient_after, net, one_batch, samples, sgd, start_noise, watched, weights

EPS = 0.2


@pytest.mark.parametrize("kind", ["plain", "bn", "smooth"])
def test_dat_with_threshold_zero_is_pgd_at(kind: str) -> None:
    model, twin = net(kind), net(kind)
    ours, theirs = sgd(model), sgd(twin)
    spared = 0.0
    for batch in batches(samples(36), size=12, epochs=2):
        dat = DAT(eps=EPS, fosc_max=0.0, step_size=0.1).step(model, batch, ours)
        pgd = PGDAT(eps=EPS, statistics="running", step_size=0.1).step(twin, batch, theirs)
        spared += pgd.passes - dat.passes
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)
    assert spared > 0 or kind != "smooth"  # samples stop at vertices, where further steps would not move them


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_the_bounded_condition_is_the_best_linear_gain(seed: int, boxed: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, u = torch.rand(2, 5, 3, generator=draw, dtype=torch.float64)
    g = torch.randn(5, 3, generator=draw, dtype=torch.float64)
    feasible = Ball(EPS, "linf", (0.0, 1.0) if boxed else None).around(x)
    delta = feasible.project_((2 * u - 1) * 2 * EPS)
    gap = DAT(eps=EPS).gap(g, delta, feasible, EPS)
    low, high = feasible.project_(torch.full_like(x, -9.0)), feasible.project_(torch.full_like(x, 9.0))
    corners = torch.cartesian_prod(*[torch.tensor([False, True])] * 3)
    gains = torch.stack([(g * (torch.where(corner, high, low) - delta)).sum(1) for corner in corners])
    torch.testing.assert_close(gap, gains.max(0).values, rtol=1e-12, atol=1e-14)
    assert (gap >= 0).all()
    vertex = torch.where(g > 0, high, low)
    assert torch.equal(feasible.climb_(vertex.clone(), g.clone(), 0.1), vertex)
    assert DAT(eps=EPS).gap(g, vertex, feasible, EPS).tolist() == [0.0] * 5


@pytest.mark.parametrize(("norm", "order"), [("linf", 1), ("l2", 2), ("l1", math.inf)])
def test_the_published_condition_by_hand(norm: str, order: float) -> None:
    batch = one_batch(5)
    feasible = Ball(EPS, norm).around(batch.x)
    delta = feasible.project_(start_noise(batch, EPS, norm))
    g = input_gradient(net("smooth"), batch.x + delta, batch.y)
    got = DAT(eps=EPS, norm=norm, fosc="published").gap(g, delta, feasible, EPS)
    for i in range(5):
        by_hand = EPS * float(g[i].flatten().norm(p=order)) - float((g[i] * delta[i]).sum())
        assert float(got[i]) == pytest.approx(by_hand, rel=1e-12)
        assert by_hand >= 0
    if norm == "linf":  # the bounds only take gain away
        assert (DAT(eps=EPS).gap(g, delta, feasible, EPS) <= got + 1e-15).all()


@pytest.mark.parametrize("fosc", ["bounded", "published"])
def test_samples_that_are_done_are_not_computed(fosc: str) -> None:
    batch, model = one_batch(16), net("plain")
    method = DAT(eps=EPS, steps=6, fosc_max=0.3, fosc=fosc)
    twin = net("plain")
    with watched(model) as points:
        log = method.step(model, batch, sgd(model))
    feasible = Ball(EPS).around(batch.x)
    delta = feasible.project_(start_noise(batch, EPS))
    expected, going = [], list(range(16))
    with evaluation_mode(twin):
        for t in range(6):  # one sample at a time, each on its own
            expected.append(len(going))
            for i in list(going):
                one, some = torch.tensor([i]), delta[i : i + 1]
                g = input_gradient(twin, batch.x[one] + some, batch.y[one])
                if t > 0 and float(method.gap(g, some, feasible.rows(one), EPS)) <= 0.3:
                    going.remove(i)
                else:
                    feasible.rows(one).climb_(some, g, 2.5 * EPS / 6)
            if not going:
                break
    *ascent, training = points.rows
    assert ascent == expected
    assert expected[1] == 16  # the first step always applies
    assert expected[-1] < 16
    assert training == 16
    assert log.passes == sum(points.rows)
    torch.testing.assert_close(points.inputs[-1], batch.x + delta, rtol=0, atol=1e-12)


def test_the_first_step_always_applies() -> None:
    """Also where every start would do: the FOSC is looked at before the second step."""
    batch, model = one_batch(16), net("plain")
    with watched(model) as points:
        DAT(eps=EPS, steps=6, fosc_max=1e9).step(model, batch, sgd(model))
    assert points.rows == [16, 16, 16]
    assert torch.equal(points.inputs[1], points.inputs[2])
    assert not torch.equal(points.inputs[0], points.inputs[1])


def test_the_threshold_falls_linearly_to_zero() -> None:
    method = DAT(eps=EPS, fosc_max=0.5, control_epochs=8.0)
    assert [method.threshold(epoch) for epoch in (0, 2, 4, 8, 20)] == [0.5, 0.375, 0.25, 0.0, 0.0]


def test_weights_by_loss_start_in_the_second_epoch() -> None:
    first = one_batch()
    second = type(first)(**{**vars(first), "epoch": 1})
    settings_: dict[str, Any] = {"eps": EPS, "steps": 2, "fosc_max": 0.0}
    model = net("smooth")
    plain, weighted = DAT(**settings_), DAT(**settings_, weighted=True)
    assert torch.equal(gradient_after(plain, model, first)[0], gradient_after(weighted, model, first)[0])
    with watched(model) as points:
        plain.step(model, second, torch.optim.SGD(model.parameters(), lr=0.0))
    losses = torch.nn.functional.cross_entropy(model(points.inputs[-1]), second.y, reduction="none")
    expected = torch.autograd.grad((losses * losses.detach() / losses.detach().mean()).mean(), list(model.parameters()))
    got, log = gradient_after(weighted, model, second)
    torch.testing.assert_close(got, torch.cat([g.flatten() for g in expected]), rtol=1e-10, atol=1e-14)
    assert log.loss == pytest.approx(float(losses.detach().mean()), rel=1e-12)
