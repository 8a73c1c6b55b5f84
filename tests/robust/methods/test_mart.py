"""MART against its loss written out, in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sihg.robust.methods import MART
from tests.robust.methods.nets import gradient_after, gradients, net, one_batch, sgd, watched

EPS = 0.2


def by_hand(clean: Tensor, attacked: Tensor, y: Tensor, beta: float) -> Tensor:
    """Return the mean of the authors' loss, one sample at a time, from probabilities."""
    losses = []
    for p, q, label in zip(clean.softmax(1), attacked.softmax(1), y.tolist(), strict=True):
        wrong = max(q[k] for k in range(len(q)) if k != label)
        boosted = -q[label].log() - (1.0001 - wrong).log()
        losses.append(boosted + beta * (p * (p / q).log()).sum() * (1 - p[label]))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("kind", ["smooth", "bn"])
def test_a_step_is_the_authors_loss_at_their_attack(kind: str) -> None:
    batch, model, twin = one_batch(), net(kind), net(kind)
    got, log = gradient_after(MART(eps=EPS, beta=3.0, steps=4, step_size=0.06), model, batch)
    twin.eval()
    adversarial = (batch.x + 0.001 * batch.normal("start")).clamp(0, 1)
    for _ in range(4):
        point = adversarial.clone().requires_grad_()
        (g,) = torch.autograd.grad(cross_entropy(twin(point), batch.y), point)
        adversarial = torch.clamp(adversarial + 0.06 * g.sign(), batch.x - EPS, batch.x + EPS).clamp(0, 1)
    twin.train()
    clean, attacked = twin(batch.x), twin(adversarial)
    loss = by_hand(clean, attacked, batch.y, beta=3.0)
    loss.backward()
    torch.testing.assert_close(got, gradients(twin), rtol=1e-9, atol=1e-12)
    assert log.loss == pytest.approx(float(loss.detach()), rel=1e-10)
    assert log.accuracy == float((attacked.argmax(1) == batch.y).double().mean())


def test_it_trains_on_the_clean_and_the_attacked_samples() -> None:
    batch, model = one_batch(), net("bn")
    with watched(model) as points:
        log = MART(eps=EPS, steps=5).step(model, batch, sgd(model))
    assert [torch.equal(point, batch.x) for point in points.inputs] == [False] * 5 + [True, False]
    assert float((points.inputs[-1] - batch.x).abs().max()) <= EPS + 1e-12
    assert log.passes == 12 * (5 + 2)


def test_a_certain_prediction_has_a_finite_loss() -> None:
    """Of a wrong class with probability 1, the authors' 1.0001 leaves -log(0.0001)."""
    from sihg.robust.methods.mart import margin_loss

    logits, y = torch.tensor([[200.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True), torch.tensor([1])
    loss = margin_loss(logits, y)
    assert float(loss.detach()) == pytest.approx(-torch.tensor(1e-4, dtype=torch.float64).log().item(), rel=1e-9)
    (slope,) = torch.autograd.grad(loss, logits)
    assert bool(torch.isfinite(slope).all())
