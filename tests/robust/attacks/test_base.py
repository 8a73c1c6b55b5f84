"""How an attack is called: what it accepts, chunks, and how it leaves the model; and settings of all attacks."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import APGD, FAB, FGSM, PGD, Attack, Certified, Noise, Square, Transfer, build_attack
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.attacks.trained_models import mixed, trained
from tests.robust.methods.nets import gradients, net, samples

X, Y = samples(300, (6,))


def changed(rows: Tensor, row: int, value: float) -> Tensor:
    rows = rows.clone()
    rows[row] = value
    return rows


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_parts_give_what_the_whole_gives(norm: str) -> None:
    """The number of a row decides its draws, wherever the rows are cut."""
    x, y = samples(300, (6,))
    model = trained("table")
    attack = PGD(eps=0.15, steps=3, restarts=2, norm=norm)
    whole = attack.run(model, x, y, seed=1)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    parts = [attack.run(model, x[rows], y[rows], seed=1, numbers=rows) for rows in order.split([70, 1, 129, 100])]
    assert torch.equal(torch.cat([part.broken for part in parts]), whole.broken[order])
    torch.testing.assert_close(torch.cat([part.x_adv for part in parts]), whole.x_adv[order], rtol=0, atol=1e-12)
    assert sum(part.passes for part in parts) == whole.passes
    shifted = attack.run(model, x[64:192], y[64:192], seed=1)
    assert not torch.equal(shifted.x_adv, whole.x_adv[64:192])
    with refused("row-numbers"):
        attack.run(model, x, y, numbers=torch.arange(10))
    with refused("samples-not-finite", row=65):
        attack.run(model, changed(x, 1, float("nan")), y, numbers=torch.arange(64, 364))


def test_rows_per_chunk() -> None:
    """About as many values whatever the shape, in multiples of the 64 rows that are drawn together."""
    shapes = ((1, 28, 28), (3, 32, 32), (3, 224, 224), (6,), ())
    assert [rows_per_chunk(shape) for shape in shapes] == [1024, 256, 64, 1024, 1024]


def test_no_rows() -> None:
    x, y = samples(0)
    verdict = PGD(eps=0.1).run(net("plain"), x, y)
    assert (verdict.x_adv.shape, verdict.broken.shape, verdict.margin.shape) == (x.shape, (0,), (0,))
    assert (verdict.passes, verdict.forwards) == (0, 0)


class StopError(Exception):
    pass


class Failing(nn.Module):
    """Fails in its third pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes == 3:
            raise StopError
        return x


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    x, y = samples(40)
    model = nn.Sequential(Failing() if fails else nn.Identity(), trained("bn"), nn.Dropout(0.5).eval())
    body = model[1].body
    assert isinstance(body, nn.Sequential)
    body[1].eval()  # a user's frozen layer
    modes, state = [m.training for m in model.modules()], deepcopy(model.state_dict())
    assert True in modes
    assert False in modes
    x_before, attack = x.clone(), PGD(eps=0.1, steps=5, last_iterate=True)
    if fails:
        with pytest.raises(StopError):
            attack(model, x, y)
    else:
        with torch.no_grad():  # as evaluation loops have it
            attack(model, x.requires_grad_(), y)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert x.grad is None
    assert torch.equal(x, x_before)


def test_gradients_that_wait_for_a_step_stay() -> None:
    x, y = samples(10)
    model = net("plain")
    model(x).sum().backward()
    before = gradients(model).clone()
    x_adv = PGD(eps=0.1, steps=2)(model, x, y)
    assert torch.equal(gradients(model), before)
    assert not x_adv.requires_grad


def test_the_attack_runs_in_evaluation_mode() -> None:
    """Otherwise one sample's verdict would depend on its neighbours."""
    x, y = samples(60)
    model = trained("bn")
    attack = PGD(eps=0.1, steps=3)
    together = attack.run(model, x, y)
    first = attack.run(model, x[:7], y[:7])
    assert torch.equal(first.broken, together.broken[:7])
    torch.testing.assert_close(first.x_adv, together.x_adv[:7], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    x, y = samples(30)
    model = trained("smooth")
    assert torch.equal(PGD(eps=0.1)(model, x, y.to(dtype)), PGD(eps=0.1)(model, x, y))


@pytest.mark.parametrize(
    ("x", "y", "code", "values"),
    [
        (changed(X, 270, float("nan")), Y, "samples-not-finite", {"row": 270}),
        (X, changed(Y, 280, 4), "label-beyond-outputs", {"row": 280}),
        (X, changed(Y, 280, -100), "label-range", {"row": 280}),
        (X, Y[:5], "labels", {}),
        (X, Y.double(), "labels", {}),
        (X, Y > 0, "labels", {}),
        ((255 * X).to(torch.uint8), Y, "batch-type", {}),
        (X[:, 0], Y, "batch-shape", {"shape": (300,)}),
        (255 * X, Y, "data-outside-bounds", {}),
    ],
)
@pytest.mark.parametrize("attack", [PGD(eps=0.1, steps=2), FAB(eps=0.1, steps=2)])
def test_samples_that_cannot_be_attacked(
    attack: Attack, x: Tensor, y: Tensor, code: str, values: dict[str, object]
) -> None:
    with refused(code, **values):
        attack(trained("table"), x, y)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("last_iterate", [False, True])
def test_a_model_with_logits_that_are_not_finite(value: float, last_iterate: bool) -> None:
    model = net("table")
    with torch.no_grad():
        next(model.parameters())[0, 0] = value
    with refused("logits-not-finite"):
        PGD(eps=0.1, last_iterate=last_iterate)(model, X, Y)
    assert model.training


class Output(nn.Module):
    """Returns a function of its input."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (nn.Unflatten(1, (6, 1)), "logits-shape"),
        (Output(lambda x: x.long()), "logits-type"),
        (Output(lambda x: [x]), "logits-type"),
        (Output(lambda x: x[1:]), "logits-shape"),
    ],
)
def test_a_model_without_logits(model: nn.Module, code: str) -> None:
    with refused(code):
        PGD(eps=0.1)(model, X[:10], Y[:10])


def test_a_function_is_not_a_model() -> None:
    model: Any = torch.sin
    with refused("not-a-module"):
        PGD(eps=0.1)(model, X, Y)


@pytest.mark.parametrize(
    ("make", "settings", "code"),
    [
        *((make, {"eps": 8.0}, "eps-scale") for make in (PGD, FGSM, APGD, FAB, Square, Noise)),
        *((make, {"eps": -1}, "eps-range") for make in (PGD, FGSM, APGD, FAB, Square, Noise)),
        *((make, {"norm": "l3"}, "unknown-norm") for make in (PGD, FGSM, APGD, FAB, Square, Noise)),
        *((make, {"restarts": bad}, "count-range") for make in (PGD, APGD, FAB, Square) for bad in (0, 1.5, True)),
        *((make, {"steps": bad}, "count-range") for make in (PGD, APGD, FAB) for bad in (0, 2.5)),
        *((make, {"targets": 0}, "count-range") for make in (APGD, FAB)),
        (APGD, {"loss": "dlr-u"}, "unknown-loss"),
        (PGD, {"step_size": 0.0}, "pgd-step-size-range"),
        (PGD, {"step_size": math.inf}, "pgd-step-size-range"),
        (Noise, {"draws": 0}, "count-range"),
        (Square, {"queries": 0}, "count-range"),
        *((Square, {"p_init": bad}, "p-init-range") for bad in (0.0, 1.1, math.nan)),
        (Transfer, {"source": nn.Identity(), "steps": 0}, "count-range"),
        (Transfer, {"source": torch.sin}, "transfer-source-type"),
        (Certified, {"norm": "l2"}, "interval-norm"),
    ],
)
def test_settings_that_are_refused(make: Callable[..., Attack], settings: dict[str, object], code: str) -> None:
    with refused(code):
        make(**{"eps": 0.1, **settings})


class Brightness(nn.Module):
    """Sees the sum of the values alone, so that its gradient is one number for all of them."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.flatten(1).sum(1, keepdim=True) / 32 - 1
        return torch.cat([-bright, bright], 1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("kind", [PGD, APGD, FAB])
def test_a_gradient_that_is_expanded(kind: type[Attack], norm: str) -> None:
    x, _ = samples(30)
    y = Brightness()(x).argmax(1)
    verdict = kind(eps={"linf": 0.02, "l2": 0.16}[norm], norm=norm).run(Brightness(), x, y)
    assert torch.equal(Brightness()(verdict.x_adv).argmax(1) != y, verdict.broken)
    assert mixed(verdict.broken)


def test_a_gradient_that_is_not_finite() -> None:
    class Rooted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            root = (x[:, 0] - x[:, 0].detach()).abs().sqrt()[:, None]  # 0, with an infinite slope
            return torch.cat([root, 1 - root], 1)

    with refused("input-gradient-not-finite", row=0):
        PGD(eps=0.1)(Rooted(), X, Y.clamp(max=1))


@pytest.mark.parametrize("name", ["pgd-2", "apgd-ce-2", "apgd-t-2", "fab-t-2", "fab-2", "deepfool-2", "square-5"])
def test_a_model_with_one_output_cannot_be_broken(name: str) -> None:
    x, y = torch.rand(3, 4), torch.zeros(3, dtype=torch.long)
    assert not bool(build_attack(name, Ball(0.1)).run(nn.Linear(4, 1), x, y).broken.any())
