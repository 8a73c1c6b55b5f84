"""YOPO against its Hamiltonian written out."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.robust.data.batches import Batch
from sihg.robust.methods import YOPO, Natural
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.methods.nets import gradient_after, gradients, net, one_batch, sgd, start_noise, watched

EPS, SIGMA = 0.2, 0.04


def plain_yopo(model: nn.Module, batch: Batch, M: int, N: int, both: bool) -> Tensor:
    """The gradient of YOPO-M-N; every Hamiltonian is a scalar, every gradient autograd's."""
    stem, body = model.stem, model.body
    assert isinstance(stem, nn.Module)
    assert isinstance(body, nn.Module)
    noise = start_noise(batch, EPS)
    eta = (batch.x + noise).clamp(0, 1) - batch.x
    total = {p: torch.zeros_like(p) for p in model.parameters()}
    for _ in range(M):
        loss = cross_entropy(model(batch.x + eta), batch.y)
        full = torch.autograd.grad(loss, list(model.parameters()))
        features = stem(batch.x + eta).detach().requires_grad_()
        (p,) = torch.autograd.grad(cross_entropy(body(features), batch.y), features)
        for _ in range(N):
            moving = eta.clone().requires_grad_()
            (g,) = torch.autograd.grad((stem(batch.x + moving) * p).sum(), moving)
            eta = (eta + SIGMA * g.sign()).clamp(-EPS, EPS)
            eta = (batch.x + eta).clamp(0, 1) - batch.x
        own = dict(zip(stem.parameters(), _gradient((stem(batch.x + eta) * p).sum(), stem), strict=True))
        for weight, g in zip(model.parameters(), full, strict=True):
            if weight in own:
                total[weight] += own[weight] + (g if both else 0)
            else:
                total[weight] += g
    return torch.cat([total[p].flatten() for p in model.parameters()]) / M


def _gradient(value: Tensor, module: nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, list(module.parameters()))


@pytest.mark.parametrize("form", ["hamiltonian", "both"])
@pytest.mark.parametrize("kind", ["smooth", "plain"])
@pytest.mark.parametrize(("M", "N"), [(1, 0), (1, 3), (4, 2)])
def test_the_gradient_is_that_of_the_hamiltonian(kind: str, form: str, M: int, N: int) -> None:
    batch, model = one_batch(), net(kind)
    method = YOPO(eps=EPS, outer=M, inner=N, step_size=SIGMA, stem_gradient=form)
    got, _ = gradient_after(method, model, batch)
    torch.testing.assert_close(got, plain_yopo(model, batch, M, N, form == "both"), rtol=0, atol=1e-6)
    assert float(got.norm()) > 0.01


@pytest.mark.parametrize("kind", ["plain", "bn"])
def test_yopo_1_0_is_natural_training_at_the_random_start(kind: str) -> None:
    batch, model = one_batch(), net(kind)
    start = Ball(EPS).around(batch.x).project_(start_noise(batch, EPS))
    noisy = type(batch)(**{**vars(batch), "x": batch.x + start})
    got, log = gradient_after(YOPO(eps=EPS, outer=1, inner=0), model, batch)
    natural, same = gradient_after(Natural(), model, noisy)
    torch.testing.assert_close(got, natural, rtol=0, atol=1e-12)
    assert log.loss == pytest.approx(same.loss, rel=1e-12)


def test_the_stems_statistics_are_kept_once_a_full_pass() -> None:
    batch, model = one_batch(), net("bn")
    YOPO(eps=EPS, outer=3, inner=4).step(model, batch, sgd(model))
    counts = [int(value) for name, value in model.named_buffers() if name.endswith("num_batches_tracked")]
    assert counts == [3, 3]


@pytest.mark.parametrize(("M", "N"), [(1, 5), (4, 3)])
def test_the_body_never_runs_in_the_inner_loop(M: int, N: int) -> None:
    batch, model = one_batch(), net("plain")
    stem, body = model.stem, model.body
    assert isinstance(stem, nn.Module)
    assert isinstance(body, nn.Module)
    with watched(stem) as through_stem, watched(body) as through_body, watched(model) as through_both:
        YOPO(eps=EPS, outer=M, inner=N).step(model, batch, sgd(model))
    assert len(through_body.inputs) == M
    assert len(through_stem.inputs) <= M * (N + 2)
    assert not through_both.inputs
    for point in through_stem.inputs:
        assert float((point - batch.x).abs().max()) <= EPS + 1e-12
        assert float(point.min()) >= -1e-12


def test_weights_step_once() -> None:
    batch, model, twin = one_batch(), net("plain"), net("plain")
    expected, _ = gradient_after(YOPO(eps=EPS, outer=3, inner=2), model, batch)
    YOPO(eps=EPS, outer=3, inner=2).step(model, batch, torch.optim.SGD(model.parameters(), lr=1.0))
    moved = torch.cat([(a - b).detach().flatten() for a, b in zip(twin.parameters(), model.parameters(), strict=True)])
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-12)
    assert torch.equal(gradients(model), expected)


def test_a_model_that_is_not_split() -> None:
    with refused("no-stem"):
        YOPO(eps=EPS).step(nn.Linear(3, 2), one_batch(), torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1))
