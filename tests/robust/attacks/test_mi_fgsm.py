"""MI-FGSM: two iterations by hand, its starts, and how it counts."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.robust.attacks import FGSM, MIFGSM
from tests.refused import refused
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.methods.nets import net, samples, watched


def gradient(model: nn.Module, point: Tensor, y: Tensor) -> Tensor:
    point = point.detach().requires_grad_()
    return torch.autograd.grad(cross_entropy(model(point), y), point)[0]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("momentum", [1.0, 0.5, 0.0])
def test_two_iterations_by_hand(norm: str, momentum: float) -> None:
    x, y = samples(12)
    model, eps = net("smooth").eval(), 0.2
    attack = MIFGSM(eps=eps, norm=norm, steps=2, momentum=momentum, last_iterate=True)
    found = attack(model, x, y)
    for i in range(12):
        image, label = x[i : i + 1], y[i : i + 1]
        g = gradient(model, image, label)
        m = g / (g.abs().sum() if norm == "linf" else g.norm())
        first = (image + 0.1 * (m.sign() if norm == "linf" else m / m.norm())).clamp(0, 1)
        g = gradient(model, first, label)
        m = momentum * m + g / (g.abs().sum() if norm == "linf" else g.norm())
        delta = first + 0.1 * (m.sign() if norm == "linf" else m / m.norm()) - image
        torch.testing.assert_close(found[i : i + 1], (image + delta).clamp(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_verdicts_hold_at_points_of_the_ball(norm: str, bounds: str) -> None:
    x, y = samples(100, SHAPES["table"])
    model = trained("table").eval()
    attack = MIFGSM(eps=0.15 if norm == "linf" else 0.25, norm=norm, restarts=2, bounds=bounds_of(bounds, "table"))
    with watched(model) as points:
        verdict = attack.run(model, x, y, seed=1)
    assert verdict.passes == points.rows_with_gradient()
    assert torch.equal(model(verdict.x_adv).argmax(1) != y, verdict.broken)
    assert mixed(verdict.broken)
    assert_inside(attack, x, verdict.x_adv)


def test_restarts_begin_elsewhere_and_keep_what_is_broken() -> None:
    x, y = samples(100)
    model = trained("smooth")
    one, many = (MIFGSM(eps=0.08, steps=3, restarts=runs).run(model, x, y, seed=2).broken for runs in (1, 8))
    assert bool((many | ~one).all())
    assert mixed(one)
    with watched(model) as points:
        MIFGSM(eps=0.08, steps=1, restarts=2, last_iterate=True)(model, x, y, seed=2)
    starts = [x for x, on in zip(points.inputs, points.recorded, strict=True) if on]
    assert torch.equal(starts[0], x)
    assert all(bool((row != x).flatten(1).any(1).all()) for row in starts[1])


def test_one_step_is_fgsm() -> None:
    x, y = samples(60)
    model = trained("plain")
    for norm in ("linf", "l2"):
        ours, theirs = (
            attack.run(model, x, y) for attack in (MIFGSM(eps=0.1, norm=norm, steps=1), FGSM(eps=0.1, norm=norm))
        )
        torch.testing.assert_close(ours.x_adv, theirs.x_adv, rtol=0, atol=1e-12)
        assert torch.equal(ours.broken, theirs.broken)


def test_settings_out_of_range() -> None:
    with refused("momentum-range", momentum=-1.0):
        MIFGSM(eps=0.1, momentum=-1.0)
    with refused("mi-fgsm-step-size-range", step_size=0.0):
        MIFGSM(eps=0.1, step_size=0.0)
    with refused("count-range", setting="steps", value=0):
        MIFGSM(eps=0.1, steps=0)
