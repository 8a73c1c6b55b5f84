"""C&W: nearly exact on linear models, one step by hand, its verdicts and what it refuses."""

import math

import pytest
import torch
from torch import nn

from sihg.robust.attacks import CW
from tests.refused import refused
from tests.robust.attacks.linear_models import exact_distances, linear_model
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.methods.nets import net, samples, watched


@pytest.mark.parametrize("bounds", [None, (-20.0, 20.0)])
def test_linear_models_break_up_to_the_exact_distance(bounds: tuple[float, float] | None) -> None:
    """The minimum of the distance is margin / |w_y - w_j|; the bounds are far from it."""
    model, x, y = linear_model(n=40)
    exact = exact_distances(model, x, y, "l2")
    eps = float(exact.median())
    size = 0.01 if bounds is None else 0.001
    broken = CW(eps=eps, bounds=bounds, steps=300, step_size=size).run(model, x, y).broken
    assert not broken[exact > eps].any()
    assert broken[1.05 * exact < eps].all()


@pytest.mark.parametrize("bounds", [None, (-0.5, 1.5)])
def test_two_steps_by_hand(bounds: tuple[float, float] | None) -> None:
    """Adam's on |x' - x|^2 + c f(x') by automatic differentiation of the whole."""
    x, y = samples(10)
    model, c, kappa = net("smooth").eval(), 3.0, 1.0
    y = model(x).argmax(1)
    attack = CW(eps=1e-9, bounds=bounds, steps=3, searches=1, step_size=0.05, first_c=c, confidence=kappa)
    with watched(model) as points:
        attack(model, x, y)
    v = (x if bounds is None else ((x - 0.5) * 0.999999).atanh()).detach().clone().requires_grad_()
    adam = torch.optim.Adam([v], lr=0.05)
    for seen in points.inputs[1:]:
        point = v if bounds is None else 0.5 + v.tanh()
        torch.testing.assert_close(seen, point.detach(), rtol=0, atol=1e-9)
        z = model(point)
        others = z.masked_fill(nn.functional.one_hot(y, z.shape[1]).bool(), -math.inf).amax(1)
        f = (z[range(10), y] - others + kappa).clamp(min=0)
        adam.zero_grad()
        ((point - x).square().sum() + c * f.sum()).backward()
        adam.step()
    assert len(points.inputs) == 4


@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
def test_verdicts_hold_at_points_of_the_ball(bounds: str) -> None:
    x, y = samples(60, SHAPES["table"])
    model = trained("table").eval()
    attack = CW(eps=0.25, bounds=bounds_of(bounds, "table"), steps=30, searches=4, first_c=0.1)
    with watched(model) as points:
        verdict = attack.run(model, x, y)
    assert verdict.passes == points.rows_with_gradient()
    assert torch.equal(model(verdict.x_adv).argmax(1) != y, verdict.broken)
    assert mixed(verdict.broken)
    assert_inside(attack, x, verdict.x_adv)


def test_a_fixed_feature_stays() -> None:
    """Its bounds are equal, so that the change of variables has no width there."""
    x, y = samples(20, (6,))
    x[:, 2] = 0.5
    low, high = torch.zeros(6, dtype=x.dtype), torch.ones(6, dtype=x.dtype)
    low[2] = high[2] = 0.5
    found = CW(eps=1.0, bounds=(low, high), steps=20, searches=3, first_c=1.0).run(trained("table"), x, y)
    assert bool(found.broken.any())
    assert bool((found.x_adv[:, 2] == 0.5).all())


def test_what_is_refused() -> None:
    with refused("attack-norm", attack="cw", norm="linf", norms="l2"):
        CW(eps=0.1, norm="linf")
    with refused("cw-bounds"):
        CW(eps=0.1, bounds=(0.0, math.inf))
    with refused("confidence-range", confidence=-1.0):
        CW(eps=0.1, confidence=-1.0)
    with refused("cw-range", step_size=0.0, first_c=1e-3):
        CW(eps=0.1, step_size=0.0)
