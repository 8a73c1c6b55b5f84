"""APGD against a plain twin of the paper's listing, and what it must not do."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.core.draw import generator
from sihg.robust.attacks import APGD, runner
from sihg.robust.attacks._apgd_runs import MomentumRun, SparseRun
from sihg.robust.attacks.apgd import checkpoints, sparse_stages
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.gradients import dlr, margins, targeted_dlr
from sihg.robust.threat import Ball
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.l1_twins import plain_projection
from tests.robust.methods.nets import samples, watched


def inside(attack: APGD, delta: Tensor, x: Tensor) -> Tensor:
    if attack.norm == "linf":
        delta = delta.clamp(-attack.eps, attack.eps)
    elif attack.norm == "l1":
        return plain_sparse(delta, x, attack, attack.eps)
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
    elif attack.norm == "l1":
        return torch.randn(shape, generator=draw, dtype=x.dtype)[row % 64]
    else:
        t = torch.randn(shape, generator=draw, dtype=x.dtype)[row % 64]
        t = t / t.norm()
    return t * attack.eps


def plain_sparse(delta: Tensor, x: Tensor, attack: APGD, eps: float) -> Tensor:
    """Project onto the L1 ball within the bounds."""
    low, high = attack.bounds or (-torch.inf, torch.inf)
    limits = [(torch.as_tensor(b, dtype=x.dtype).expand_as(x[None])[0] - x).flatten().numpy() for b in (low, high)]
    near = plain_projection(delta.flatten().numpy(), limits[0], limits[1], eps)
    return torch.from_numpy(near).view(x.shape)


def plain_sparse_run(attack: APGD, model: nn.Module, x: Tensor, y: int, target: int, delta: Tensor) -> tuple[bool, int]:
    """The L1 run as AutoAttack does it: three balls, each from the best point of the one before."""
    passes, n = 0, attack.steps
    wide = math.ceil(0.3 * n)
    for factor, steps in ((3, wide), (2, wide), (1, n - 2 * wide)):
        eps = factor * attack.eps
        delta = plain_sparse(delta, x, attack, eps)
        eta, count = eps, int((delta != 0).sum())
        best, best_loss = delta, -math.inf
        for k in range(steps + 1):
            point = (x + delta).requires_grad_()
            logits = model(point[None])[0]
            loss = plain_loss(attack, logits, y, target)
            (g,) = torch.autograd.grad(loss, point)
            passes += k < steps
            if factor == 1 and int(logits.argmax()) != y:
                return True, passes
            if float(loss.detach()) > best_loss:
                best, best_loss, best_g = delta, float(loss.detach()), g
            if k and k % max(1, int(0.04 * steps)) == 0:
                now = int((best != 0).sum())
                if now < 0.95 * count:
                    eta, delta, g = eps, best, best_g
                else:
                    eta = max(eta / 1.5, eps / 10)
                count = now
            least = min(int(g.numel() - count / 1.5), g.numel() - 1)
            moved = g.abs() >= g.abs().flatten().sort().values[least]
            direction = g.sign() * moved
            delta = plain_sparse(delta + eta * direction / max(1, int(direction.abs().sum())), x, attack, eps)
        delta = best
    return False, passes


def plain_loss(attack: APGD, logits: Tensor, y: int, target: int) -> Tensor:
    if attack.loss == "ce":
        value: Tensor = cross_entropy(logits[None], torch.tensor([y]))
        return value
    z = logits.sort(descending=True).values
    if attack.loss == "dlr":
        other = z[1] if int(logits.argmax()) == y else z[0]
        return (other - logits[y]) / (z[0] - z[2] + 1e-12)
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
            run = plain_sparse_run if attack.norm == "l1" else plain_run
            broken, some = run(attack, model, x[row], label, target, start(attack, x, row, seed, number))
            passes += some
        verdicts.append(broken)
    return verdicts, passes


@pytest.mark.parametrize("loss", ["ce", "dlr", "dlr-t"])
@pytest.mark.parametrize("kind", ["smooth", "table"])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
def test_verdicts_are_those_of_the_plain_twin(bounds: str, norm: str, kind: str, loss: str) -> None:
    x, y = samples(70, SHAPES[kind])
    model = trained(kind).eval()
    eps = {"smooth": {"linf": 0.07, "l2": 0.4, "l1": 0.9}, "table": {"linf": 0.1, "l2": 0.17, "l1": 0.24}}[kind][norm]
    attack = APGD(eps=eps, loss=loss, steps=17, restarts=2, targets=2, norm=norm, bounds=bounds_of(bounds, kind))
    with watched(model) as points:
        verdict = attack.run(model, x, y, seed=4)
    broken, passes = plain_apgd(attack, model, x, y, seed=4)
    assert verdict.broken.tolist() == broken
    assert verdict.passes == points.rows_with_gradient()
    assert abs(verdict.passes - passes) <= (0.02 * passes if norm == "l1" else 0)  # whether an entry is zero is rounded
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


def test_the_balls_of_a_run_in_l1() -> None:
    assert sparse_stages(100) == [(3.0, 30), (2.0, 30), (1.0, 40)]
    assert sparse_stages(7) == [(3.0, 3), (2.0, 3), (1.0, 1)]
    for few in (1, 2, 4):
        assert sparse_stages(few) == [(1.0, few)]


def test_the_ratio() -> None:
    """By hand, for a label that leads and one that does not; it neither sees a shift nor a scale."""
    logits = torch.tensor([[5.0, 3.0, 2.0, 1.0]] * 2, dtype=torch.float64)
    y = torch.tensor([0, 2])
    assert dlr(logits, y).tolist() == pytest.approx([-2 / 3, 3 / 3], abs=1e-11)
    assert dlr(7 * logits + 3, y).tolist() == pytest.approx([-2 / 3, 3 / 3], abs=1e-11)
    assert dlr(logits[:, :2], torch.tensor([0, 1])).tolist() == [-2, 2]
    attack = APGD(eps=0.1, loss="dlr")
    assert attack.remark(2) == "2 classes: the difference of two logits instead of the DLR loss, which needs 3"
    assert attack.remark(3) == ""


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
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
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
    run = MomentumRun(
        kind="ce",
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


def test_a_sparse_step_and_its_check() -> None:
    """Two thirds as many entries as the best point had; where that became sparser, back to it with the longest step."""
    x = torch.zeros(3, 6, dtype=torch.float64)
    every = torch.arange(3)
    delta = torch.tensor([[0.1, 0.1, 0.1, 0, 0, 0]] * 3, dtype=torch.float64)
    g = torch.tensor([[3.0, -2, 1, 0.5, 0, 0], [0, 0, 0, 0, 0, -1], [1, 1, 1, 1, 1, 1]], dtype=torch.float64)
    best = torch.tensor([[0.2, 0, 0, 0, 0, 0], [0.1] * 6, [0.1, 0.1, 0.1, 0, 0, 0]], dtype=torch.float64)
    run = SparseRun(
        rows=Rows(x, torch.zeros(3).long(), Ball(1.0, "l1", None).around(x), every, every),
        kind="ce",
        target=None,
        delta=delta.clone(),
        g=g.clone(),
        loss=torch.zeros(3),
        logits=torch.zeros(3, 2),
        best=best,
        best_g=g + 10,
        best_loss=torch.ones(3),
        best_logits=torch.zeros(3, 2),
        step=torch.full((3, 1), 0.6, dtype=torch.float64),
        factor=2.0,
        radius=2.0,
        count=torch.tensor([3, 3, 3]),
    )
    run.move()
    moved = [[0.4, -0.2, 0.1, 0, 0, 0], [0.1, 0.1, 0.1, 0, 0, -0.6], [0.2, 0.2, 0.2, 0.1, 0.1, 0.1]]
    torch.testing.assert_close(run.delta, torch.tensor(moved, dtype=torch.float64))
    run.check()
    assert run.count.tolist() == [1, 6, 3]
    assert run.step.flatten().tolist() == pytest.approx([2.0, 0.4, 0.4])
    assert run.delta[0].tolist() == best[0].tolist()
    assert run.g[0].tolist() == (g[0] + 10).tolist()
    torch.testing.assert_close(run.delta[1:], torch.tensor(moved[1:], dtype=torch.float64))
    for _ in range(9):
        run.check()
    assert run.step.flatten().tolist() == pytest.approx([0.2, 0.2, 0.2])  # not less than a tenth
