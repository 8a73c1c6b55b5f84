"""Nearest misclassified points: closed-form distances of linear models, verified points, PGD at every radius."""

from typing import Any

import pytest
import torch

from sihg.robust.attacks import PGD
from sihg.robust.attacks.nearest import Bisection, Nearest, plan_nearest
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.attacks.linear_models import exact_distances, linear_model
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.methods.nets import samples, watched

FOR_SOME_NORMS = {"cw-100": ("l2",), "cw-400": ("l2",), "pgd-40": ("linf", "l2"), "deepfool-3": ("linf", "l2")}
NAMES = ["fab-t-10", "deepfool-3", "pgd-10", "cw-100"]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", ["fab-t-10", "deepfool-3", "pgd-40", "cw-400"])
def test_distances_of_linear_models(name: str, norm: str) -> None:
    """margin / |w_y - w_j| in the dual norm; PGD and C&W need not go to the nearest of several classes."""
    if norm not in FOR_SOME_NORMS.get(name, (norm,)):
        return
    classes = 2 if name in ("pgd-40", "cw-400") else 5
    model, x, y = linear_model(classes, n=40)
    exact = exact_distances(model, x, y, norm)
    y[:5] = (y[:5] + 1) % classes  # misclassified without an attack
    eps = 1.5 * float(exact.max())
    (attack,) = plan_nearest([name], Ball(eps, norm, None)).values()
    found = attack.run(model, x, y)
    assert found.broken.all()
    assert not found.distance[:5].any()
    torch.testing.assert_close(found.x_adv[:5], x[:5])
    ratio = found.distance[5:] / exact[5:]
    assert float(ratio.min()) >= 1 - 1e-9
    assert float(ratio.max()) <= (1.05 if classes == 2 else 1.002)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
def test_every_distance_is_that_of_a_misclassified_point(bounds: str, norm: str, name: str) -> None:
    """In float32, within the bounds; what is not found within eps has no distance."""
    if norm not in FOR_SOME_NORMS.get(name, (norm,)):
        return
    x, y = samples(80, SHAPES["table"], dtype=torch.float32)
    model = trained("table", torch.float32).eval()
    ball = Ball({"linf": 0.1, "l2": 0.2, "l1": 0.3}[norm], norm, bounds_of(bounds, "table"))
    (attack,) = plan_nearest([name], ball).values()
    with watched(model) as points:
        found = attack.run(model, x, y, seed=3)
    assert mixed(found.broken)
    assert found.passes == points.rows_with_gradient()
    assert found.forwards == sum(points.rows) - found.passes
    assert found.passes + found.forwards / 3 <= (attack.max_passes(4) or 0) * len(x)
    assert torch.equal(model(found.x_adv).argmax(1) != y, found.broken)
    order = {"linf": torch.inf, "l2": 2, "l1": 1}[norm]
    torch.testing.assert_close(found.distance, torch.linalg.vector_norm(found.x_adv - x, ord=order, dim=1))
    assert torch.equal(found.x_adv[~found.broken], x[~found.broken])
    assert_inside(attack, x, found.x_adv)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_breaks_no_sample_clearly_below_its_distance(norm: str) -> None:
    """And nearly all at it."""
    x, y = samples(60)
    model = trained("smooth").eval()
    eps = 0.3 if norm == "linf" else 1.5
    found = Bisection(eps=eps, norm=norm, steps=20).run(model, x, y)
    distance = found.distance
    assert int(found.broken.sum()) >= 58
    for share in (0.2, 0.5, 0.8):
        radius = float(distance[found.broken].quantile(share))
        broken = PGD(eps=radius, norm=norm, steps=20).run(model, x, y).broken
        assert int((broken & (distance > 1.05 * radius)).sum()) <= 1
        assert int((~broken & (1.05 * distance < radius)).sum()) <= 1


def test_a_smaller_radius_is_tried_where_nothing_is_found() -> None:
    """A stripe of another class, which steps of a large ball jump over."""

    class Stripe(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside = torch.sigmoid(2000 * (x[:, :1] - 0.1)) - torch.sigmoid(2000 * (x[:, :1] - 0.2))
            return torch.cat((0.5 + 0 * inside, inside + 1e-3 * x[:, :1]), 1)

    x, y = torch.zeros(4, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    settings: dict[str, Any] = {"eps": 1.0, "bounds": None, "steps": 4}
    assert not PGD(**settings).run(Stripe(), x, y).broken.any()
    found = Bisection(**settings).run(Stripe(), x, y)
    assert found.broken.all()
    assert float((found.distance - 0.1).abs().max()) < 0.001


@pytest.mark.parametrize("name", ["fab-t-3", "pgd-5-2"])
def test_results_depend_on_seed_and_number_alone(name: str) -> None:
    x, y = samples(150, (6,))
    (attack,) = plan_nearest([name], Ball(0.2)).values()
    whole = attack.run(trained("table"), x, y, seed=1)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    parts = [attack.run(trained("table"), x[rows], y[rows], seed=1, numbers=rows) for rows in order.split([70, 1, 79])]
    torch.testing.assert_close(torch.cat([part.distance for part in parts]), whole.distance[order], rtol=0, atol=1e-9)


def test_attacks_that_give_no_distances_are_refused() -> None:
    for name in ("fgsm", "square", "natural", "apgd-ce", "standard"):
        with refused("minimum-attack", name=name):
            plan_nearest([name], Ball(0.1))
    assert isinstance(plan_nearest(["fab-t"], Ball(0.1))["fab-t"], Nearest)
