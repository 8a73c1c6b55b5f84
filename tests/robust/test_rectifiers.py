"""Rectifiers that leak: an ascent that is blind for some rows has the gradient of a network that does not leak."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu

from sihg.errors import InputError
from sihg.robust import models
from sihg.robust.data.batches import batches
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG
from sihg.robust.passes import inner_mode
from sihg.robust.rectifiers import blinded
from tests.robust.methods.nets import CLASSES, samples, sgd, weights
from tests.robust.small import settings, trainer

SHAPE = (1, 8, 8)
LEAK = 0.25


class Stopped(nn.Module):
    """A leaky rectifier, written so that the gradient of what is below zero is cut off."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, leaky_relu(x, LEAK).detach())


def network(rectifier: Any) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), rectifier(), nn.Flatten(), nn.Linear(144, 8), rectifier(), nn.Linear(8, 3))
    return nn.Sequential(*layers).double()


def leaky() -> nn.Sequential:
    return network(lambda: nn.LeakyReLU(LEAK))


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    point = x.clone().requires_grad_()
    logits = model(point)
    return logits, torch.autograd.grad(cross_entropy(logits, y, reduction="sum"), point)[0]


def test_blind_rows_have_the_gradient_of_closed_rectifiers() -> None:
    x, y = torch.randn(6, *SHAPE, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    model = leaky()
    rows = torch.tensor([True, False, True, False, False, True])
    logits, open_ones = gradients(model, x, y)
    same, closed_ones = gradients(network(Stopped), x, y)
    assert torch.equal(logits, same)
    assert not torch.allclose(open_ones, closed_ones, rtol=0.01)
    with inner_mode(model, "batch"), blinded(model, rows):
        seen, g = gradients(model, x, y)
    assert torch.equal(seen, logits)
    torch.testing.assert_close(g[rows], closed_ones[rows], rtol=0, atol=1e-14)
    torch.testing.assert_close(g[~rows], open_ones[~rows], rtol=0, atol=1e-14)
    again = gradients(model, x, y)[1]
    assert torch.equal(again, open_ones)  # afterwards it is as it was


def test_an_error_within_leaves_the_model_as_it_was() -> None:
    model = leaky()
    with pytest.raises(RuntimeError, match="on purpose"), blinded(model, torch.ones(2, dtype=torch.bool)):
        raise RuntimeError("on purpose")
    assert all("forward" not in vars(module) for module in model.modules())


def trained(time: float, **options: Any) -> Tensor:
    """The weights after a step at this time, from the same start."""
    model = models.build("leaky-cnn", SHAPE, CLASSES, seed=3).double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                module.bias.sub_(1.5)  # closes many
    chosen = samples(8, dtype=torch.float64, shape=SHAPE)
    memory = PerturbationMemory(8, SHAPE, 0.25, dtype="fp32")
    epochs = int(time) + 1
    *_, batch = batches(chosen, size=8, epochs=epochs)
    assert batch.time == time
    MSIHG(eps=0.25, steps=3, memory=memory, **options).step(model, batch, sgd(model))
    return weights(model)


def test_the_ascent_comes_to_see() -> None:
    """Up to `blind` epochs no sample sees through closed rectifiers, after twice as many all do."""
    for time in (0.0, 1.0):
        assert not torch.equal(trained(time, blind=2), trained(time))
        assert torch.equal(trained(time, blind=2), trained(time, blind=1000))
    between = trained(3.0, blind=2)
    assert not torch.equal(between, trained(3.0))
    assert not torch.equal(between, trained(3.0, blind=1000))
    assert torch.equal(trained(4.0, blind=2), trained(4.0))


def test_models_without_leaks_and_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="has none: leave it out"):
        trainer(settings(blind=1))
    trainer(settings(blind=1, model="leaky-cnn"))
    model = models.build("small-cnn", SHAPE, CLASSES)
    with pytest.raises(InputError, match="models with nn"):
        MSIHG(eps=0.25, blind=1).step(model, next(iter(batches(samples(8, shape=SHAPE), size=8))), sgd(model))
    for blind in (-1, float("inf"), float("nan")):
        with pytest.raises(InputError, match="number of epochs"):
            MSIHG(eps=0.25, blind=blind)


def test_a_rectifier_that_sees_other_rows_is_refused() -> None:
    with blinded(model := leaky(), torch.ones(3, dtype=torch.bool)), pytest.raises(InputError, match="2 rows"):
        model(torch.zeros(2, *SHAPE, dtype=torch.float64))


def test_the_leaky_cnn_is_the_small_cnn_but_for_its_leak() -> None:
    plain, other = (models.build(name, (1, 28, 28), 10, seed=1) for name in ("small-cnn", "leaky-cnn"))
    x = torch.rand(50, 1, 28, 28)
    assert torch.equal(weights(plain), weights(other))
    assert not torch.equal(plain(x), other(x))
    torch.testing.assert_close(plain(x), other(x), rtol=0, atol=0.01)
