"""TRADES against its loss written out."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sihg.robust.methods import TRADES, Natural
from tests.robust.methods.nets import gradient_after, gradients, net, one_batch, sgd, watched

EPS = 0.2


def kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """sum p log(p / q), from probabilities."""
    p, q = p_logits.softmax(1), q_logits.softmax(1)
    return (p * (p / q).log()).sum()


@pytest.mark.parametrize("kind", ["smooth", "bn"])
def test_a_step_is_the_authors_loss_at_their_attack(kind: str) -> None:
    batch, model, twin = one_batch(), net(kind), net(kind)
    got, log = gradient_after(TRADES(eps=EPS, beta=3.0, steps=4, step_size=0.06), model, batch)
    twin.eval()
    clean = twin(batch.x).detach()
    adversarial = batch.x + 0.001 * batch.normal("start")
    adversarial = adversarial.clamp(0, 1)
    for _ in range(4):
        point = adversarial.clone().requires_grad_()
        (g,) = torch.autograd.grad(kl(clean, twin(point)), point)
        adversarial = adversarial + 0.06 * g.sign()
        adversarial = torch.clamp(torch.clamp(adversarial, batch.x - EPS, batch.x + EPS), 0, 1)
    twin.train()
    natural = twin(batch.x)
    loss = cross_entropy(natural, batch.y) + 3.0 * kl(natural, twin(adversarial)) / 12
    loss.backward()
    torch.testing.assert_close(got, gradients(twin), rtol=1e-9, atol=1e-12)
    assert log.loss == pytest.approx(float(loss.detach()), rel=1e-10)


def test_the_clean_logits_are_computed_once_for_the_attack() -> None:
    batch, model = one_batch(), net("bn")
    with watched(model) as points:
        log = TRADES(eps=EPS, steps=5).step(model, batch, sgd(model))
    assert [bool(torch.equal(point, batch.x)) for point in points.inputs] == [True, *[False] * 5, True, False]
    assert points.recorded == [False] + [True] * 7
    assert log.passes == 12 * (0.5 + 5 + 2)  # a lone forward is half a pass


@pytest.mark.parametrize("kind", ["plain", "bn"])
def test_beta_zero_is_natural_training(kind: str) -> None:
    batch, model = one_batch(), net(kind)
    ours, log = gradient_after(TRADES(eps=EPS, beta=0.0), model, batch)
    natural, same = gradient_after(Natural(), model, batch)
    torch.testing.assert_close(ours, natural, rtol=0, atol=1e-12)
    assert log.loss == pytest.approx(same.loss, rel=1e-12)
