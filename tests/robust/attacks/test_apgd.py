"""APGD against a plain twin of the paper's listing, and what it must not do."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.core.draw import generator
from sihg.robust.attacks import APGD, runner
from sihg.robust.attacks.apgd import Run, checkpoints
from sihg.robust.attacks.search import Rows
from sihg.robust.gradients import margins, targeted_dlr
from sihg.robust.threat import Ball
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.methods.nets import samples, watched


def inside(attack: APGD, delta: Tensor, x: Tensor) -> Tensor:
    if attack.norm == "linf":
        delta = delta.clamp(-attack.eps, attack.eps)
    else:
        delta = delta * min(1.0, attack.eps / max(float(delta.norm()), 1e-300))
    if attack.bounds is None:
        return delta
    low, high = (torch.as_tensor(b, dtype=x.dtype).expand_as(x) - x for b in attack.bounds)
    return delta.clamp(low, high)


def start(attack: APGD, x: Tensor, row: int, seed: int, run: int) -> Tensor:
    draw, shape = generator(seed, f"apgd {attack.loss}", run, row // 64), (64, *x.shape[1:])
    if attack.norm == "linf":
        t = (torch.rand(shape, generator=draw, dtype=x.dtype) * 2 - 1)[row % 64]
        t = t / t.abs().max()
    else:
        t = torch.randn(shape, generator=draw, dtype=x.dtype)[row % 64]
        t = t / t.norm()
    return t * attack.eps


def plain_loss(attack: APGD, logits: Tensor, y: int, target: int) -> Tensor:
    if attack.loss == "ce":
        value: Tensor = cross_entropy(logits[None], torch.tensor([y]))
        return value
    z = logits.sort(descending=True).values
    gap = logits[target] - logits[y]
    return gap if len(z) < 4 else gap / (z[0] - (z[2] + z[3]) / 2 + 1e-12)


def plain_run(attack: APGD, model: nn.Module, x: Tensor, y: int, target: int, delta: Tensor) -> tuple[bool, int]:
    """The listing of the paper for one sample; whether it breaks, and the gradients asked for until then."""
    n, passes = attack.steps, 0

    def measured(delta: Tensor) -> tuple[bool, float, Tensor]:
        point = (x + delta).requires_grad_()
        logits = model(point[None])[0]
        loss = plain_loss(attack, logits, y, target)
        (g,) = torch.autograd.grad(loss, point)
        return int(logits.argmax()) != y, float(loss.detach()), g

    def ascended(delta: Tensor, g: Tensor) -> Tensor:
        return inside(attack, delta + eta * (g.sign() if attack.norm == "linf" else g / g.norm()), x)

    eta, shares = 2 * attack.eps, [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    checks = [math.ceil(round(share * n, 9)) for share in shares]
    deltas, losses = [inside(attack, delta, x)], []
    broken, loss, g = measured(deltas[0])
    passes += 1
    losses.append(loss)
    best, best_loss, best_g = deltas[0], loss, g
    etas, bests, rises = [eta], [loss], 0
    for k in range(1, n + 1):
        if broken:
            return True, passes
        ahead = ascended(deltas[-1], g)
        if k > 1:
            ahead = inside(attack, deltas[-1] + 0.75 * (ahead - deltas[-1]) + 0.25 * (deltas[-1] - deltas[-2]), x)
        before = losses[-1]
        deltas.append(ahead)
        broken, loss, g = measured(ahead)
        passes += k < n
        losses.append(loss)
        rises += loss > before
        if loss > best_loss:
            best, best_loss, best_g = ahead, loss, g
        if k in checks[1:]:
            length = k - max(c for c in checks if c < k)
            halve = rises < 0.75 * length or (len(etas) > 1 and etas[-1] == etas[-2] and bests[-1] == best_loss)
            if halve:
                eta /= 2
                deltas[-1], losses[-1], g = best, best_loss, best_g
            etas.append(eta)
            bests.append(best_loss)
            rises = 0
    return broken, passes


def plain_apgd(attack: APGD, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> tuple[list[bool], int]:
    verdicts, passes = [], 0
    for row in range(len(x)):
        label = int(y[row])
        clean = model(x[row : row + 1])[0]
        targets, broken = [label], int(clean.argmax()) != label
        if attack.loss == "dlr-t":
            targets = [t for t in clean.argsort(descending=True).tolist() if t != label][: attack.targets]
        runs = [(target, r) for target in targets for r in range(attack.restarts)]
        for number, (target, _) in enumerate(runs):
            if broken:
                break
            broken, some = plain_run(attack, model, x[row], label, target, start(attack, x, row, seed, number))
            passes += some
        verdicts.append(broken)
    return verdicts, passes


@pytest.mark.parametrize("loss", ["ce", "dlr-t"])
@pytest.mark.parametrize("kind", ["smooth", "table"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
def test_verdicts_are_those_of_the_plain_twin(bounds: str, norm: str, kind: str, loss: str) -> None:
    x, y = samples(70, SHAPES[kind])
    model = trained(kind).eval()
    eps = {"smoothlinf": 0.07, "smoothl2": 0.4, "tablelinf": 0.1, "tablel2": 0.17}[kind + norm]
    attack = APGD(eps=eps, loss=loss, steps=17, restarts=2, targets=2, norm=norm, bounds=bounds_of(bounds, kind))
    with watched(model) as points:
        verdict = attack.run(model, x, y, seed=4)
    broken, passes = plain_apgd(attack, model, x, y, seed=4)
    assert verdict.broken.tolist() == broken
    assert verdict.passes == points.rows_with_gradient() == passes
    assert verdict.passes + verdict.forwards == sum(points.rows)
    assert mixed(verdict.broken)
    logits = model(verdict.x_adv)
    assert (logits.argmax(1) != y).tolist() == broken
    torch.testing.assert_close(verdict.margin, margins(logits, y), rtol=0, atol=1e-12)
    assert_inside(attack, x, verdict.x_adv)


def test_checkpoints_of_a_hundred_steps() -> None:
    assert checkpoints(100) == {22: 22, 41: 19, 57: 16, 70: 13, 80: 10, 87: 7, 93: 6, 99: 6}
    assert checkpoints(1) == {1: 1}
    assert sum(checkpoints(7).values()) == 7


def test_the_targeted_ratio() -> None:
    """By hand, and it neither sees a shift nor a scale."""
    logits = torch.tensor([[5.0, 3.0, 2.0, 1.0, -9.0]], dtype=torch.float64)
    y, target = torch.tensor([0]), torch.tensor([2])
    assert float(targeted_dlr(target, logits, y)) == pytest.approx(-3 / (5 - 1.5), abs=1e-12)
    assert float(targeted_dlr(target, 7 * logits + 3, y)) == pytest.approx(-3 / (5 - 1.5), abs=1e-11)
    assert float(targeted_dlr(target, logits[:, :3], y)) == -3


@pytest.mark.parametrize("classes", [2, 3])
def test_fewer_than_four_classes(classes: int) -> None:
    torch.manual_seed(0)
    x, _ = samples(80, (6,))
    model = nn.Sequential(nn.Linear(6, classes)).double()
    y = model(x).argmax(1)
    weight, bias = (value.detach() for value in model.parameters())
    logits = x @ weight.T + bias
    reach = torch.full((80, classes), math.inf, dtype=torch.float64)  # a linear model's distance to each other class
    for c in range(classes):
        other = y != c
        gap = logits[other].gather(1, y[other, None]).squeeze(1) - logits[other, c]
        reach[other, c] = gap / (weight[y[other]] - weight[c]).abs().sum(1)
    eps = 1.001 * float(reach.amin(1).median())
    attack = APGD(eps=eps, loss="dlr-t", steps=10, bounds=None)
    found = attack.run(model, x, y)
    assert found.broken.tolist() == (reach.amin(1) < eps).tolist()
    assert mixed(found.broken)
    assert attack.remark(classes) == (
        f"{classes} classes: the difference of two logits instead of the DLR loss, which needs 4"
    )
    assert attack.remark(4) == APGD(eps=0.2).remark(2) == ""


@pytest.mark.parametrize("loss", ["ce", "dlr-t"])
def test_a_row_does_not_mind_its_company(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(150, (6,))
    model = trained("table")
    attack = APGD(eps=0.1, steps=10, loss=loss)
    whole = attack.run(model, x, y, seed=1)
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: 64)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    again = attack.run(model, x[order], y[order], seed=1, numbers=order)
    assert torch.equal(again.broken, whole.broken[order])
    torch.testing.assert_close(again.x_adv, whole.x_adv[order], rtol=0, atol=1e-12)
    assert (again.passes, again.forwards) == (whole.passes, whole.forwards)
    assert not torch.equal(attack(model, x, y, seed=2), whole.x_adv)


def test_more_restarts_break_no_less() -> None:
    x, y = samples(100)
    model = trained("smooth")
    one, three = (APGD(eps=0.06, steps=1, restarts=runs).run(model, x, y) for runs in (1, 3))
    assert bool((three.broken | ~one.broken).all())
    assert bool((three.margin <= one.margin)[~one.broken].all())
    assert bool((three.margin < one.margin)[~one.broken].any())


@pytest.mark.parametrize("loss", ["ce", "dlr-t"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_eps_zero_is_the_natural_verdict(norm: str, loss: str) -> None:
    x, y = samples(50)
    y = (y + (torch.arange(50) % 3 == 0)) % 4
    model = trained("smooth")
    verdict = APGD(eps=0.0, steps=3, norm=norm, loss=loss).run(model, x, y)
    assert torch.equal(verdict.broken, model(x).argmax(1) != y)
    assert torch.equal(verdict.x_adv, x)


def test_a_check_halves_the_step_and_goes_back_where_progress_is_too_slow() -> None:
    """Rows: enough rises and a new best; too few rises; enough rises but no new best; that again after a halving."""
    column = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    run = Run(
        rows=Rows(
            column, torch.zeros(4).long(), Ball(9.0, bounds=None).around(column), torch.arange(4), torch.arange(4)
        ),
        target=None,
        delta=column.clone(),
        previous=0 * column,
        g=column + 10,
        loss=torch.ones(4),
        logits=torch.zeros(4, 2),
        best=column + 20,
        best_g=column + 30,
        best_loss=torch.tensor([7.0, 7, 5, 5]),
        best_logits=torch.zeros(4, 2),
        step=torch.full((4, 1), 0.8),
        rises=torch.tensor([3.0, 2, 3, 3]),
        checked_loss=torch.full((4,), 5.0),
        halved=torch.tensor([False, False, False, True]),
    )
    run.check(4)  # 0.75 of 4 steps must rise
    assert run.halved.tolist() == [False, True, True, False]
    assert run.step.flatten().tolist() == pytest.approx([0.8, 0.4, 0.4, 0.8])
    assert run.delta.flatten().tolist() == [1, 22, 23, 4]
    assert run.g.flatten().tolist() == [11, 32, 33, 14]
    assert run.loss.tolist() == [1, 7, 5, 1]
    assert run.checked_loss.tolist() == [7, 7, 5, 5]
    assert run.rises.tolist() == [0, 0, 0, 0]


class Hill(nn.Module):
    """Two logits whose difference is largest at 0.3, where the first one still leads."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(x), -((x - 0.3) ** 2)], 1)


@pytest.mark.parametrize("loss", ["ce", "dlr-t"])
def test_halved_steps_find_a_maximum_inside_the_ball(loss: str) -> None:
    x, y = torch.linspace(0.2, 0.4, 20, dtype=torch.float64)[:, None], torch.zeros(20).long()
    for seed in range(3):
        x_adv = APGD(eps=0.2, loss=loss)(Hill(), x, y, seed)
        assert float((x_adv - 0.3).abs().max()) < 0.004  # a fiftieth of eps
