"""N-FGSM against its listing, and what it is without noise."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from sihg.parse import ORDERS
from sihg.robust.methods import FGSMAT, NFGSM
from tests.robust.methods.nets import net, one_batch, sgd, start_noise, watched, weights

EPS = 0.1


@pytest.mark.parametrize("kind", ["smooth", "bn"])
def test_a_step_is_the_listing(kind: str) -> None:
    batch, model, twin = one_batch(), net(kind), net(kind)
    with watched(model) as points:
        log = NFGSM(eps=EPS, k=2.0).step(model, batch, sgd(model))
    eta = (2 * batch.uniform("start") - 1) * 2 * EPS
    noisy = (batch.x + eta).clamp(0, 1)
    point = noisy.clone().requires_grad_()
    (g,) = torch.autograd.grad(cross_entropy(twin(point), batch.y), point)
    expected = (noisy + EPS * g.sign()).clamp(0, 1)
    torch.testing.assert_close(points.inputs[0], noisy, rtol=0, atol=1e-12)
    torch.testing.assert_close(points.inputs[1], expected, rtol=0, atol=1e-12)
    assert 2 * EPS < float((points.inputs[1] - batch.x).abs().max()) <= 3 * EPS + 1e-12  # beyond the ball
    assert log.passes == 2 * 12


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-0.1, 1.3), None])
@pytest.mark.parametrize("kind", ["plain", "bn"])
def test_without_noise_it_is_fgsm_at(kind: str, bounds: tuple[float, float] | None) -> None:
    model, twin, batch = net(kind), net(kind), one_batch()
    a, b = NFGSM(eps=EPS, k=0.0, bounds=bounds), FGSMAT(eps=EPS, bounds=bounds)
    log, same = a.step(model, batch, sgd(model)), b.step(twin, batch, sgd(twin))
    assert (log.loss, log.passes) == (same.loss, same.passes)
    assert torch.equal(weights(model), weights(twin))


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_other_norms_have_their_noise_and_their_steps(norm: str) -> None:
    batch, model = one_batch(), net("smooth")
    with watched(model) as points:
        NFGSM(eps=EPS, norm=norm, bounds=None).step(model, batch, sgd(model))
    noisy, point = (x - batch.x for x in points.inputs)
    torch.testing.assert_close(noisy, start_noise(batch, 2 * EPS, norm), rtol=0, atol=1e-12)
    lengths = torch.linalg.vector_norm((point - noisy).flatten(1), ord=ORDERS[norm], dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, EPS), rtol=1e-9, atol=0)
    with watched(model) as points:
        NFGSM(eps=1.0, norm=norm).step(model, batch, sgd(model))  # cut by the bounds
    assert float(min(x.min() for x in points.inputs)) >= 0
    assert float(max(x.max() for x in points.inputs)) <= 1


def test_a_ball_wider_than_a_third_of_the_bounds_is_not_a_limit() -> None:
    """(k + 1) eps may exceed the bounds, which alone cut its perturbations."""
    batch, model = one_batch(), net("plain")
    with watched(model) as points:
        NFGSM(eps=0.4, k=2.0).step(model, batch, sgd(model))
    assert float(points.inputs[-1].min()) == 0.0
    assert float(points.inputs[-1].max()) == 1.0
