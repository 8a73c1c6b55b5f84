"""DeepFool: exact on linear models, two iterations by hand, its costs and its verdicts."""

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import DeepFool
from tests.refused import refused
from tests.robust.attacks.linear_models import DUAL, exact_distances, linear_model
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.methods.nets import net, samples, watched


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_linear_models_fall_at_the_exact_distance(norm: str) -> None:
    """But for the overshoot, and in one step."""
    model, x, y = linear_model()
    exact = exact_distances(model, x, y, norm)
    found = DeepFool(eps=100.0, norm=norm, bounds=None, steps=1).run(model, x, y)
    assert found.broken.all()
    order = torch.inf if norm == "linf" else 2
    torch.testing.assert_close(torch.linalg.vector_norm(found.x_adv - x, ord=order, dim=1), 1.02 * exact)
    eps = float(exact.median())
    broken = DeepFool(eps=eps, norm=norm, bounds=None).run(model, x, y).broken
    assert not broken[exact > eps].any()
    assert broken[1.02 * exact < eps].all()


def plane_step(model: nn.Module, point: Tensor, label: int, classes: list[int], norm: str) -> Tensor:
    """The shortest step from a point to a linearised boundary."""
    steps: list[tuple[float, Tensor]] = []
    for k in classes:
        leaf = point.detach().clone().requires_grad_()
        z = model(leaf)[0]
        f = z[k] - z[label]
        (w,) = torch.autograd.grad(f, leaf)
        size = torch.linalg.vector_norm(w, ord=DUAL[norm])
        distance = f.detach().abs() / size
        steps.append((float(distance), distance * (w.sign() if norm == "linf" else w / size)))
    return min(steps, key=lambda step: step[0])[1]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_iterations_by_hand(norm: str) -> None:
    """Until a point is misclassified; candidates are the likeliest classes at x."""
    x, y = samples(15)
    model = net("smooth").eval()
    y = model(x).argmax(1)
    found = DeepFool(eps=10.0 if norm == "l2" else 1.0, norm=norm, steps=2, candidates=3).run(model, x, y)
    for i in range(15):
        image, label = x[i : i + 1], int(y[i])
        classes = [k for k in model(image)[0].argsort(descending=True).tolist() if k != label][:2]
        total, point, wrong = torch.zeros_like(image), image, False
        for _ in range(2):
            if not wrong:
                total = total + plane_step(model, point, label, classes, norm)
                point = (image + 1.02 * total).clamp(0, 1)
                wrong = int(model(point).argmax()) != label
        assert bool(found.broken[i]) == wrong
        if wrong:
            torch.testing.assert_close(found.x_adv[i : i + 1], point, rtol=0, atol=1e-10)
    assert bool(found.broken.any())


@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_verdicts_hold_at_points_of_the_ball(norm: str, bounds: str) -> None:
    x, y = samples(100, SHAPES["table"])
    model = trained("table").eval()
    attack = DeepFool(eps=0.15 if norm == "linf" else 0.25, norm=norm, bounds=bounds_of(bounds, "table"))
    with watched(model) as points:
        verdict = attack.run(model, x, y)
    assert verdict.passes == points.rows_with_gradient()
    assert verdict.passes % 3 == 0  # three other classes
    assert verdict.forwards == sum(points.rows) - verdict.passes
    assert torch.equal(model(verdict.x_adv).argmax(1) != y, verdict.broken)
    assert mixed(verdict.broken)
    assert_inside(attack, x, verdict.x_adv)


class Flat(nn.Module):
    """Has no slope anywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([1.0, 0.0]).to(x) + 0 * x[:, :2]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_model_without_a_slope_holds(norm: str) -> None:
    found = DeepFool(eps=0.5, norm=norm, bounds=None, steps=3).run(Flat(), torch.zeros(2, 3), torch.tensor([0, 1]))
    assert found.broken.tolist() == [False, True]
    assert torch.equal(found.x_adv, torch.zeros(2, 3))


def test_settings_out_of_range() -> None:
    with refused("overshoot-range", overshoot=-0.1):
        DeepFool(eps=0.1, overshoot=-0.1)
    with refused("deepfool-candidates", candidates=1):
        DeepFool(eps=0.1, candidates=1)
