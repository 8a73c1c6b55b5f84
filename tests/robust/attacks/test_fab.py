"""FAB against a plain twin and exact distances; the shortest steps to a hyperplane against scipy."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from torch import Tensor, nn

from sihg.core.draw import generator
from sihg.parse import ORDERS
from sihg.robust.attacks import _hyperplane, runner
from sihg.robust.attacks._hyperplane import shortest_steps
from sihg.robust.attacks.fab import FAB
from sihg.robust.gradients import margins
from sihg.robust.threat import uniform_noise
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.methods.nets import samples, watched

Array = NDArray[np.float64]
EPS = {"smoothlinf": 0.05, "smoothl2": 0.25, "smoothl1": 0.7, "tablelinf": 0.15, "tablel2": 0.25, "tablel1": 0.3}


def plain_shortest(w: Array, c: float, low: Array, high: Array, norm: str) -> Array:
    """By bisection on the radius (linf) or the multiplier (l2); entry by entry, the largest first (l1)."""
    if norm == "l1":
        d, left = np.zeros_like(w), abs(c)
        for i in np.argsort(-np.abs(w), kind="stable"):
            sign, room = np.sign(w[i] * c), high[i] if w[i] * c > 0 else -low[i]
            d[i] = sign * min(room, left / abs(w[i]) if w[i] else 0.0)
            left = max(0.0, left - abs(w[i] * d[i]))
        return d
    direction = (np.sign(w) if norm == "linf" else w) * np.sign(c)
    far = 1.0
    while far < 1e30 and w @ np.clip(far * direction, low, high) * np.sign(c) < abs(c):
        far *= 2
    near = 0.0
    for _ in range(80):
        middle = (near + far) / 2
        if w @ np.clip(middle * direction, low, high) * np.sign(c) < abs(c):
            near = middle
        else:
            far = middle
    nearest: Array = np.clip(far * direction, low, high)
    return nearest


def planes(n: int = 60, d: int = 7, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hyperplanes near and far on both sides; zeros in w, no room, equal knots, w = 0, c = 0."""
    draw = torch.Generator().manual_seed(seed)
    w, low, high = (torch.randn(n, d, generator=draw, dtype=torch.float64) for _ in range(3))
    low, high = -low.abs(), high.abs()
    c = w.abs().sum(1) * torch.randn(n, generator=draw, dtype=torch.float64)
    w[::3, ::2] = 0
    low[::4, 1], high[::5, 2] = 0, 0
    low[::6], high[::6] = -0.5, 0.5
    w[7::10] = 0
    c[9::10] = 0
    c[11] = w[11].clamp(min=0) @ high[11] + w[11].clamp(max=0) @ low[11]  # just the corner
    return w, c, low, high


def reach(w: Array, c: float, low: Array, high: Array) -> float:
    """The value of w d nearest to c."""
    at = np.where(w > 0, high, low), np.where(w > 0, low, high)
    return float(np.clip(c, w @ at[1], w @ at[0]))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_shortest_steps_are_those_of_scipy(norm: str) -> None:
    cases = planes()
    found = shortest_steps(*cases, norm)
    out_of_reach = 0
    for w, c, low, high, d in zip(*(rows.numpy() for rows in (*cases, found)), strict=True):
        assert (d >= low).all()
        assert (d <= high).all()
        goal = reach(w, c, low, high)
        out_of_reach += abs(goal - c) > 1e-6
        assert abs(w @ d - goal) < 1e-10
        if norm == "linf":
            box = [*zip(low, high, strict=True), (0, None)]
            signs = np.kron([[1], [-1]], np.eye(len(w)))
            bounded = np.hstack((signs, -np.ones((2 * len(w), 1))))
            best = linprog([*0 * w, 1], bounded, np.zeros(2 * len(w)), [[*w, 0]], [goal], box)
            assert best.status == 0
            assert abs(np.abs(d).max() - best.fun) < 1e-9
        elif norm == "l1":
            sides = [*zip(0 * high, high, strict=True), *zip(0 * low, -low, strict=True)]
            best = linprog(np.ones(2 * len(w)), A_eq=[[*w, *-w]], b_eq=[goal], bounds=sides)
            assert best.status == 0
            assert abs(np.abs(d).sum() - best.fun) < 1e-9
        else:
            plane = {"type": "eq", "fun": lambda z, w=w, goal=goal: w @ z - goal}
            best = minimize(lambda z: z @ z, d / 2, constraints=plane, bounds=list(zip(low, high, strict=True)))
            assert np.linalg.norm(d) <= np.linalg.norm(best.x) + 1e-5
        np.testing.assert_allclose(d, plain_shortest(w, c, low, high, norm), rtol=0, atol=1e-10)
    assert 5 < out_of_reach < 50


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_shortest_steps_of_many_features(norm: str, seed: int) -> None:
    cases = planes(40, 500, seed)
    cases[1].mul_(0.05)
    found = shortest_steps(*cases, norm)
    rows = zip(*(part.numpy() for part in cases), strict=True)
    plain = np.stack([plain_shortest(w, c, low, high, norm) for w, c, low, high in rows])
    np.testing.assert_allclose(found.numpy(), plain, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e30])
def test_shortest_steps_for_gradients_of_any_scale(norm: str, scale: float) -> None:
    w, c, low, high = planes()
    single = [part.float() for part in (w, c * scale, low, high)]
    single[0] = (w * scale).float()
    d = shortest_steps(single[0], single[1], single[2], single[3], norm)
    again = shortest_steps((w * scale).float().double(), (c * scale).float().double(), low, high, norm)
    torch.testing.assert_close(d.double(), again, rtol=0, atol=1e-3 if scale == 1e-38 else 1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_gradient_that_is_no_number_ends_and_harms_nobody_else(norm: str) -> None:
    w, c, low, high = planes()
    before, others = shortest_steps(w, c, low, high, norm), torch.arange(60) != 3
    w[3, 3] = torch.nan
    torch.testing.assert_close(shortest_steps(w, c, low, high, norm)[others], before[others], rtol=0, atol=1e-12)


def length(norm: str, d: Array) -> float:
    return float(np.linalg.norm(d, ORDERS[norm]))


class Twin:
    """The paper's algorithm for one sample, which is left alone as soon as it is broken."""

    def __init__(self, attack: FAB, model: nn.Module, x: Tensor, y: int) -> None:
        self.attack, self.model, self.y, self.shape = attack, model, y, x.shape
        self.x: Array = x.flatten().numpy()
        self.passes, self.forwards, self.margin = 0, 1, np.inf
        far = np.full(self.x.shape, 1000 * attack.eps)
        self.low, self.high = self.x - far, self.x + far
        if attack.bounds is not None:
            low, high = (torch.as_tensor(b, dtype=x.dtype).expand_as(x[None]).flatten() for b in attack.bounds)
            self.low, self.high = np.maximum(self.low, low.numpy()), np.minimum(self.high, high.numpy())

    def logits(self, point: Array) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.model(torch.from_numpy(point).view(1, *self.shape))[0]
        others = logits[torch.arange(len(logits)) != self.y]
        if length(self.attack.norm, point - self.x) <= self.attack.eps:
            self.margin = min(self.margin, float(logits[self.y] - others.max()))
        return logits

    def plane(self, point: Array, target: int) -> tuple[float, Array]:
        leaf = torch.from_numpy(point).view(1, *self.shape).requires_grad_()
        logits = self.model(leaf)[0]
        f = logits[target] - logits[self.y]
        return float(f.detach()), torch.autograd.grad(f, leaf)[0].flatten().numpy()

    def run(self, starts: list[Tensor]) -> None:
        clean = self.logits(self.x)
        others = [k for k in clean.argsort(descending=True).tolist() if k != self.y]
        for number, start in enumerate(starts):
            if self.margin >= 0:
                targets = [others[number // self.attack.restarts]] if self.attack.targeted else others
                self.approach(np.clip(self.x + start.flatten().numpy(), self.low, self.high), targets)

    def approach(self, point: Array, targets: list[int]) -> None:
        norm = self.attack.norm
        dual = {"linf": 1, "l2": 2, "l1": np.inf}[norm]
        for _ in range(self.attack.steps):
            self.passes += len(targets)
            self.logits(point)
            if self.margin < 0:
                return
            planes = [self.plane(point, target) for target in targets]
            f, w = min(planes, key=lambda plane: abs(plane[0]) / float(np.linalg.norm(plane[1], ord=dual)))
            d = plain_shortest(w, -f, self.low - point, self.high - point, norm)
            d_x = plain_shortest(w, float(w @ (point - self.x)) - f, self.low - self.x, self.high - self.x, norm)
            alpha = min(length(norm, d) / (length(norm, d) + length(norm, d_x)), 0.1)
            point = (1 - alpha) * (point + 1.05 * d) + alpha * (self.x + 1.05 * d_x)
            point = np.clip(point, self.low, self.high)
            self.forwards += 1
            logits = self.logits(point)
            if self.margin < 0:
                return
            if int(logits.argmax()) != self.y:
                point = self.x + 0.9 * (point - self.x)


def twins(attack: FAB, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> list[Twin]:
    runs: list[Tensor] = []
    shape = (64, *x.shape[1:])
    for run in range((min(attack.targets, 3) if attack.targeted else 1) * attack.restarts):
        blocks = [
            uniform_noise(attack.norm, shape, attack.eps / 2, generator(seed, "FAB start", run, block), x.dtype)
            for block in range(-(-len(x) // 64))
        ]
        runs.append(torch.cat(blocks) * (run % attack.restarts > 0))
    found = [Twin(attack, model, sample, int(label)) for sample, label in zip(x, y, strict=True)]
    for row, twin in enumerate(found):
        twin.run([starts[row] for starts in runs])
    return found


@pytest.mark.parametrize("kind", ["smooth", "table"])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize(
    ("bounds", "targeted"), [("none", True), ("scalars", True), ("features", True), ("scalars", False)]
)
def test_verdicts_are_those_of_the_plain_twin(bounds: str, targeted: bool, norm: str, kind: str) -> None:
    x, y = samples(70 if kind == "table" else 40, SHAPES[kind])
    model = trained(kind).eval()
    within: dict[str, Any] = {"eps": EPS[kind + norm], "norm": norm, "bounds": bounds_of(bounds, kind)}
    attack = FAB(**within, steps=3, restarts=2, targets=2, targeted=targeted)
    with watched(model) as points:
        verdict = attack.run(model, x, y, seed=4)
    found = twins(attack, model, x, y, seed=4)
    assert verdict.broken.tolist() == [twin.margin < 0 for twin in found]
    assert mixed(verdict.broken)
    assert verdict.passes == points.rows_with_gradient() == sum(twin.passes for twin in found)
    assert verdict.forwards == sum(points.rows) - verdict.passes == sum(twin.forwards for twin in found)
    np.testing.assert_allclose(verdict.margin, [twin.margin for twin in found], rtol=0, atol=1e-8)
    with torch.no_grad():
        logits = model(verdict.x_adv)
    assert torch.equal(logits.argmax(1) != y, verdict.broken)
    torch.testing.assert_close(margins(logits, y), verdict.margin, rtol=0, atol=1e-12)
    assert_inside(attack, x, verdict.x_adv)
    order = ORDERS[norm]
    assert float(torch.linalg.vector_norm((verdict.x_adv - x).flatten(1), ord=order, dim=1).max()) <= attack.eps


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_linear_models_break_up_to_the_exact_distance(bounds: Any, norm: str, classes: int) -> None:
    """But for the overshoot, which keeps the points found from coming closer than a hundredth to the boundary."""
    draw = torch.Generator().manual_seed(classes)
    x = torch.rand(80, 6, generator=draw, dtype=torch.float64)
    model = nn.Linear(6, classes, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.randn(classes, 6, generator=draw, dtype=torch.float64))
        model.bias.copy_(-model.weight.sum(1) / 2)
        logits = model(x)
    y = logits.argmax(1)
    low, high = (-1e6 - x, 1e6 - x) if bounds is None else (0 - x, 1 - x)
    distance = np.full(len(x), np.inf)
    for i, label in enumerate(y.tolist()):
        for t in set(range(classes)) - {label}:
            w = (model.weight[t] - model.weight[label]).detach().numpy()
            c = float(logits[i, label] - logits[i, t])
            if abs(reach(w, c, low[i].numpy(), high[i].numpy()) - c) < 1e-12:
                d = plain_shortest(w, c, low[i].numpy(), high[i].numpy(), norm)
                distance[i] = min(distance[i], length(norm, d))
    eps = float(np.median(distance))
    for targeted in (True, False):
        attack = FAB(eps=eps, norm=norm, bounds=bounds, steps=20, targeted=targeted)
        broken = attack.run(model, x, y).broken.numpy()
        assert not broken[distance > eps].any()
        if targeted or bounds is None:  # the nearest plane may be out of reach within the bounds
            assert broken[distance * 1.01 < eps].all()
        assert mixed(torch.from_numpy(broken))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_what_is_wrong_without_an_attack_is_broken_at_once(norm: str) -> None:
    x, y = samples(50)
    y = (y + (torch.arange(50) % 3 == 0)) % 4
    model = trained("smooth").eval()
    wrong = model(x).argmax(1) != y
    verdict = FAB(eps=0.0, steps=2, norm=norm).run(model, x, y)
    assert torch.equal(verdict.broken, wrong)
    assert torch.equal(verdict.x_adv, x)
    assert mixed(wrong)
    only = FAB(eps=0.1, steps=2, norm=norm).run(model, x[wrong], y[wrong])
    assert (only.passes, only.forwards) == (0, int(wrong.sum()))
    assert torch.equal(only.x_adv, x[wrong])


def test_each_target_and_restart_breaks_more() -> None:
    x, y = samples(120)
    model = trained("smooth")
    broken = [
        FAB(eps=0.1, steps=2, targets=targets, restarts=restarts).run(model, x, y, seed=3).broken
        for targets, restarts in ((1, 1), (2, 1), (9, 1), (9, 3))
    ]
    assert all(bool((more | ~less).all()) for less, more in pairwise(broken))
    assert int(broken[-1].sum()) > int(broken[0].sum())


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_results_depend_on_seed_and_number_alone(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(200, (6,))
    model = trained("table")
    attack = FAB(eps=0.1, steps=2, restarts=2, targets=2, norm=norm)
    whole = attack.run(model, x, y, seed=1)
    assert mixed(whole.broken)
    assert not torch.equal(attack(model, x, y, seed=2), whole.x_adv)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    parts = [attack.run(model, x[rows], y[rows], seed=1, numbers=rows) for rows in order.split([70, 1, 99, 30])]
    assert torch.equal(torch.cat([part.broken for part in parts]), whole.broken[order])
    torch.testing.assert_close(torch.cat([part.x_adv for part in parts]), whole.x_adv[order], rtol=0, atol=1e-9)
    assert sum(part.passes for part in parts) == whole.passes
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: 64)
    monkeypatch.setattr("sihg.robust.attacks.fab.VALUES_PER_BLOCK", 60)  # ten rows
    again = attack.run(model, x, y, seed=1)
    assert torch.equal(again.broken, whole.broken)
    assert (again.passes, again.forwards) == (whole.passes, whole.forwards)
    torch.testing.assert_close(again.x_adv, whole.x_adv, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_single_precision_keeps_the_ball_and_the_bounds(norm: str) -> None:
    x, y = samples(300, (6,), dtype=torch.float32)
    eps = EPS[f"table{norm}"]
    single, double = (
        FAB(eps=eps, steps=5, norm=norm).run(trained("table", dtype), x.to(dtype), y)
        for dtype in (torch.float32, torch.float64)
    )
    assert int((single.broken != double.broken).sum()) <= 3
    order = ORDERS[norm]
    assert float(torch.linalg.vector_norm(single.x_adv - x, ord=order, dim=1).max()) <= eps * (1 + 1e-7)
    assert 0 <= float(single.x_adv.min()) <= float(single.x_adv.max()) <= 1


@pytest.mark.parametrize("shape", [(6,), (1, 8, 8), (2, 3), (4, 5, 3)])
def test_inputs_of_any_shape(shape: tuple[int, ...]) -> None:
    x, y = samples(3, shape)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 4)).double()
    for rows in (3, 1):
        assert FAB(eps=0.1, steps=2).run(model, x[:rows], y[:rows]).x_adv.shape == (rows, *shape)


def test_the_model_is_left_as_it_was() -> None:
    x, y = samples(40)
    model = trained("bn").train()
    state = deepcopy(model.state_dict())
    before = x.clone()
    with torch.no_grad():
        found = FAB(eps=0.05, steps=2, restarts=2).run(model, x.requires_grad_(), y)
    assert not found.x_adv.requires_grad
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert x.grad is None
    assert torch.equal(x, before)


class Flat(nn.Module):
    """Two logits, of which the second never wins, and has a slope of about `slope`."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack((torch.ones(len(x)).to(x), self.slope * x.sin().sum(1)), 1)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("slope", [0.0, 1e-30, 1e-3])
def test_flat_models_without_bounds(norm: str, slope: float) -> None:
    """Their hyperplanes are out of this world; the points are not."""
    x, y = samples(5, (6,))
    model, attack = Flat(slope), FAB(eps=0.1, norm=norm, bounds=None, steps=3)
    with watched(model) as points:
        verdict = attack.run(model, x, 0 * y)
    assert not verdict.broken.any()
    assert max(float(point.abs().max()) for point in points.inputs) < 102
    assert_inside(attack, x, verdict.x_adv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sorting_finds_the_level_of_newtons_method(dtype: torch.dtype) -> None:
    """Where the sum reaches c, else a level beyond all knots."""
    w, c, low, high = planes(n=200, d=50)
    g, knots = w.abs().to(dtype), torch.maximum(-low, high).to(dtype)
    knots[5] = torch.inf
    c = c.abs()[:, None].to(dtype)
    found, expected = _hyperplane._level_by_sorting(g, knots, c), _hyperplane._level(g, knots, c)
    most = 1e-5 if dtype == torch.float32 else 1e-12
    levels = (torch.minimum(level, knots) * g for level in (found, expected))
    torch.testing.assert_close(*levels, rtol=most, atol=most)
    is_short = (g * knots).sum(1, keepdim=True) < c
    assert 20 < int(is_short.sum()) < 180
    assert bool((found[is_short] >= knots.where(g > 0, 0).amax(1, keepdim=True)[is_short]).all())
