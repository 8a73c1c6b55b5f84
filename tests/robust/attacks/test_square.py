"""Square against a plain twin of the paper's listings, and what it must not do."""

import math
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from sihg.core.draw import generator
from sihg.parse import ORDERS
from sihg.robust.attacks import runner, square
from sihg.robust.attacks.square import Square
from sihg.robust.gradients import margins
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.l1_twins import plain_projection
from tests.robust.methods.nets import gradients, net, samples, watched


@cache
def plain_eta(h1: int, h2: int, norm: str) -> Tensor:
    """Equation 2 of the paper, its indices from 1 on, with length 1; steeper for L1."""
    out, n = torch.zeros(h1, h2, dtype=torch.float64), max(h1, h2) // 2
    for r in range(1, h1 + 1):
        for s in range(1, h2 + 1):
            m = n - max(abs(r - h1 // 2 - 1), abs(s - h2 // 2 - 1))
            out[r - 1, s - 1] = sum(1 / (n + 1 - k) ** (2 if norm == "l2" else 4) for k in range(m + 1))
    return out.div_(plain_length(out, norm))


@cache
def plain_bump(tall: int, wide: int, upright: bool, norm: str) -> Tensor:
    if not upright:
        return plain_bump(wide, tall, True, norm).T
    out = torch.zeros(tall, wide, dtype=torch.float64)
    if tall > 1:
        out[: tall // 2] = plain_eta(tall // 2, wide, norm)
    out[tall // 2 :] = -plain_eta(tall - tall // 2, wide, norm)
    return out.div_(plain_length(out, norm))


def plain_length(delta: Tensor, norm: str) -> Tensor:
    return delta.abs().sum() if norm == "l1" else delta.norm()


def plain_sides(attack: Square, query: int, h: int, w: int) -> tuple[int, int]:
    p = attack.p_init
    for bound in square.HALVINGS:
        if math.floor(square.QUERIES * query / attack.queries) > bound:
            p /= 2
    least = 1 if attack.norm == "linf" else 3
    exact = (math.sqrt(p * h * w),) * 2
    side = max(least, round(exact[0]))
    if attack.norm != "linf" and side % 2 == 0:
        side += 1
    if side > w:
        exact = p * h, w
    elif side > h:
        exact = h, p * w
    sides = []
    for length, most in zip(exact, (h, w), strict=True):
        side = max(least, round(length))
        sides.append(min(most, side + (attack.norm != "linf" and side % 2 == 0)))
    return sides[0], sides[1]


@dataclass
class Found:
    broken: list[bool] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    forwards: int = 0


def plain_square(attack: Square, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> Found:
    """Sample by sample, until it breaks."""
    shape = x.shape[1:]
    c, h, w = {1: (1, 1, *shape), 2: (shape[0], 1, shape[-1])}.get(
        len(shape), (shape[0], math.prod(shape[1:-1]), shape[-1])
    )
    ahead = square.NUMBERS_PER_DRAW // (5 + c)
    low, high = (-torch.inf, torch.inf) if attack.bounds is None else attack.bounds
    lows, highs = (torch.as_tensor(b, dtype=x.dtype).expand_as(x).reshape(-1, c, h, w) for b in (low, high))

    @cache
    def drawn(what: str, run: int, block: int, *size: int) -> Tensor:
        return torch.rand((64, *size), generator=generator(seed, what, run, block), dtype=x.dtype)

    found = Found()
    for i, image in enumerate(x.reshape(-1, c, h, w)):

        def clip(point: Tensor, i: int = i) -> Tensor:
            return torch.maximum(torch.minimum(point, highs[i]), lows[i])

        def inside(image: Tensor, delta: Tensor, i: int = i) -> Tensor:
            if attack.norm != "l1":
                return clip(image + delta, i)
            low, high = ((limit[i] - image).flatten().numpy() for limit in (lows, highs))
            near = plain_projection(delta.flatten().numpy(), low, high, attack.eps)
            return image + torch.from_numpy(near).view(image.shape)

        logits = model(image.view(1, *shape)).flatten()
        found.forwards += 1
        margin = float(logits[y[i]]) - max(float(z) for k, z in enumerate(logits) if k != int(y[i]))
        best, broken = image, int(logits.argmax()) != int(y[i])
        for run in range(0 if broken else attack.restarts):
            now, here = image, math.inf
            for query in range(attack.queries):
                if query == 0 and attack.norm == "linf":
                    u = drawn("square start", run, i // 64, c, 1, w)[i % 64]
                    new = clip(image + plain_stripes(attack, c, h, w, u))
                elif query == 0:
                    u = drawn("square start", run, i // 64, 1 + c, min(5, h) * min(5, w))[i % 64]
                    new = inside(image, plain_tiles(attack, c, h, w, u))
                else:
                    block, turn = divmod(query - 1, ahead)
                    u = drawn(f"square {block}", run, i // 64, ahead, 5 + c)[i % 64, turn]
                    sides = plain_sides(attack, query, h, w)
                    move = plain_corner if attack.norm == "linf" else plain_bumps
                    new = inside(image, move(attack, now - image, u, *sides))
                if query > 0 and attack.norm == "linf" and torch.allclose(new, now, rtol=0, atol=1e-12):
                    continue
                logits = model(new.view(1, *shape)).flatten()
                found.forwards += 1
                other = max(float(z) for k, z in enumerate(logits) if k != int(y[i]))
                value = float(logits[y[i]]) - other
                if value < here:
                    now, here = new, value
                if value < margin:
                    best, margin = new, value
                broken = int(logits.argmax()) != int(y[i])
                if broken:
                    break
            if broken:
                break
        found.broken.append(broken)
        found.points.append(best.view(shape))
        found.margins.append(margin)
    return found


def plain_stripes(attack: Square, c: int, h: int, w: int, u: Tensor) -> Tensor:
    delta = torch.zeros(c, h, w, dtype=torch.float64)
    for channel in range(c):
        for column in range(w):
            delta[channel, :, column] = -attack.eps if u[channel, 0, column] < 0.5 else attack.eps
    return delta


def plain_tiles(attack: Square, c: int, h: int, w: int, u: Tensor) -> Tensor:
    tall, wide, down, across = max(1, h // 5), max(1, w // 5), min(5, h), min(5, w)
    top, left = (h - tall * down) // 2, (w - wide * across) // 2
    delta = torch.zeros(c, h, w, dtype=torch.float64)
    for r in range(down):
        for s in range(across):
            bump = plain_bump(tall, wide, bool(u[0, r * across + s] >= 0.5), attack.norm)
            for channel in range(c):
                a, b = top + r * tall, left + s * wide
                sign = -1 if u[1 + channel, r * across + s] < 0.5 else 1
                delta[channel, a : a + tall, b : b + wide] = sign * bump
    if attack.norm == "l1":
        return delta.mul_(max(1, attack.eps / float(delta.abs().sum())))
    return delta.mul_(attack.eps / delta.norm())


def plain_place(delta: Tensor, u: Tensor, tall: int, wide: int) -> tuple[slice, slice]:
    top, left = int(u[0] * (delta.shape[1] - tall + 1)), int(u[1] * (delta.shape[2] - wide + 1))
    return slice(top, top + tall), slice(left, left + wide)


def plain_corner(attack: Square, delta: Tensor, u: Tensor, tall: int, wide: int) -> Tensor:
    delta, place = delta.clone(), plain_place(delta, u, tall, wide)
    for channel in range(len(delta)):
        delta[channel, *place] = -attack.eps if u[5 + channel] < 0.5 else attack.eps
    return delta


def plain_bumps(attack: Square, delta: Tensor, u: Tensor, tall: int, wide: int) -> Tensor:
    new, one, two = delta.clone(), plain_place(delta, u, tall, wide), plain_place(delta, u[2:], tall, wide)
    covered = torch.zeros(delta.shape[1:], dtype=torch.bool)
    covered[one] = covered[two] = True
    power = 2 if attack.norm == "l2" else 1
    unused = max(0.0, attack.eps**power - float(plain_length(delta, attack.norm)) ** power)
    new[:, *two] = 0
    for channel in range(len(delta)):
        before = delta[channel, *one]
        sign = -1 if u[5 + channel] < 0.5 else 1
        mix = sign * plain_bump(tall, wide, bool(u[4] >= 0.5), attack.norm)
        if before.any():
            mix = mix + before / plain_length(before, attack.norm)
        length = float(plain_length(delta[channel][covered], attack.norm)) ** power + unused / len(delta)
        length = math.sqrt(length) if power == 2 else length * len(delta)
        size = plain_length(mix, attack.norm)
        new[channel, *one] = mix / size * length if size > 1e-7 else 0
    return new


def mlp(shape: tuple[int, ...], classes: int = 3) -> nn.Module:
    """A network that holds all classes equally likely in the middle of [0, 1]."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        last = nn.Linear(16, classes)
        model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.Tanh(), last).double().eval()
    with torch.no_grad():
        last.bias.sub_(model(torch.full((1, *shape), 0.5, dtype=torch.float64)).flatten())
    return model


def assert_twins(attack: Square, model: nn.Module, x: Tensor, y: Tensor) -> None:
    with watched(model) as points:
        verdict = attack.run(model, x, y, seed=3)
    with torch.no_grad():
        twin = plain_square(attack, model, x, y, seed=3)
    assert verdict.broken.tolist() == twin.broken
    assert mixed(verdict.broken)
    assert verdict.forwards == sum(points.rows) == twin.forwards
    assert verdict.passes == points.rows_with_gradient() == 0
    torch.testing.assert_close(verdict.x_adv, torch.stack(twin.points), rtol=0, atol=1e-9)
    torch.testing.assert_close(verdict.margin, torch.tensor(twin.margins, dtype=x.dtype), rtol=0, atol=1e-9)
    assert_inside(attack, x, verdict.x_adv)


@pytest.mark.parametrize("kind", ["smooth", "table"])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
def test_results_are_those_of_the_plain_twin(
    bounds: str, norm: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(square, "NUMBERS_PER_DRAW", 60)  # so that 10 queries are drawn for at once
    monkeypatch.setattr(square, "HALVINGS", (500, 1000, 2000, 3500))
    x, y = samples(24, SHAPES[kind])
    eps = {"smooth": {"linf": 0.1, "l2": 0.6, "l1": 2.0}, "table": {"linf": 0.15, "l2": 0.25, "l1": 0.35}}[kind][norm]
    attack = Square(eps=eps, norm=norm, bounds=bounds_of(bounds, kind), queries=25, restarts=2)
    assert_twins(attack, trained(kind).eval(), x, y)


@pytest.mark.parametrize("shape", [(3, 4, 7), (2, 9), (2, 2, 3, 4), (3, 1, 1), (1,)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_samples_of_any_shape(norm: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(square, "HALVINGS", (1000, 2500))
    model = mlp(shape)
    x = torch.rand(20, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eps = {"linf": 0.1, "l2": 0.07 * math.sqrt(math.prod(shape)), "l1": 0.05 * math.prod(shape) ** 0.8}[norm]
    assert_twins(Square(eps=eps, norm=norm, queries=15), model, x, model(x).argmax(1))


def test_two_classes_and_one_row() -> None:
    model = mlp((6,), classes=2)
    x, _ = samples(20, (6,))
    y = model(x).argmax(1)
    attack = Square(eps=0.2, queries=30)
    assert_twins(attack, model, x, y)
    alone = [attack.run(model, x[i : i + 1], y[i : i + 1], numbers=torch.tensor([i])) for i in range(20)]
    together = attack.run(model, x, y)
    assert torch.equal(torch.cat([one.broken for one in alone]), together.broken)
    torch.testing.assert_close(torch.cat([one.x_adv for one in alone]), together.x_adv, rtol=0, atol=1e-12)


def test_the_sides_of_the_windows() -> None:
    """Those of AutoAttack for 28 x 28 and 5,000 queries; for half as many they come twice as early."""
    queries = (1, 10, 11, 51, 201, 501, 1001, 2001, 4001, 4999)
    sides = [Square(eps=0.1)._sides(query, 28, 28) for query in queries]
    assert sides == [(s, s) for s in (25, 25, 18, 13, 9, 6, 4, 3, 2, 2)]
    assert [Square(eps=0.1, queries=2500)._sides(query, 28, 28)[0] for query in (5, 6, 25, 26)] == [25, 18, 18, 13]
    sides = [Square(eps=0.1, norm="l2")._sides(query, 28, 28) for query in queries]
    assert sides == [(s, s) for s in (25, 25, 19, 13, 9, 7, 5, 3, 3, 3)]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize(("h", "w"), [(1, 40), (40, 1), (4, 25), (2, 2), (1, 1), (7, 5)])
def test_the_area_of_the_windows(norm: str, h: int, w: int) -> None:
    attack = Square(eps=0.1, norm=norm)
    for query in (1, 30, 100, 300, 4900):
        tall, wide = attack._sides(query, h, w)
        assert 1 <= tall <= h
        assert 1 <= wide <= w
        assert (tall, wide) == plain_sides(attack, query, h, w)
        if norm == "linf":
            p = 0.8 / 2 ** sum(query > bound for bound in square.HALVINGS)
            assert abs(math.sqrt(tall * wide) - math.sqrt(max(1, p * h * w))) <= 1


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_what_is_found_is_the_smallest_margin_of_all_queries(norm: str) -> None:
    """So that it falls from run to run and from query to query."""
    x, y = samples(10)
    model = trained("smooth").eval()
    y = model(x).argmax(1)
    one, two = (Square(eps=0.01, norm=norm, queries=30, restarts=runs) for runs in (1, 2))
    found = two.run(model, x, y)
    assert not found.broken.any()
    for row in range(10):
        with watched(model) as points:
            two.run(model, x[row : row + 1], y[row : row + 1], numbers=torch.tensor([row]))
        asked = len(points.inputs)
        assert asked < 61 if norm == "linf" else asked == 61  # the sample itself, and at most 30 queries a run
        seen = margins(model(torch.cat(points.inputs)), y[row].expand(asked))
        torch.testing.assert_close(found.margin[row], seen.min(), rtol=0, atol=1e-12)
        torch.testing.assert_close(found.x_adv[row], points.inputs[int(seen.argmin())][0], rtol=0, atol=1e-12)
    assert bool((found.margin <= one.run(model, x, y).margin + 1e-12).all())
    assert bool((found.margin < margins(model(x), y)).all())


def test_the_length_in_single_precision() -> None:
    """Though it is never measured over the whole sample between two draws."""
    x, y = samples(20, (3, 16, 16), dtype=torch.float32)
    model = mlp((3, 16, 16)).float()
    y = model(x).argmax(1)
    found = Square(eps=0.05, norm="l2", queries=400, bounds=None).run(model, x, y)
    held = (found.x_adv - x)[~found.broken].double().flatten(1).norm(dim=1)
    assert len(held) > 5
    torch.testing.assert_close(held, torch.full_like(held, 0.05), rtol=2e-5, atol=0)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_results_depend_on_the_seed_alone(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(200, (6,))
    model = trained("table")
    attack = Square(eps=0.15, norm=norm, queries=100, restarts=2)
    first, other = attack.run(model, x, y, seed=1), attack.run(model, x, y, seed=2)
    assert mixed(first.broken)
    assert torch.equal(attack(model, x, y, seed=1), first.x_adv)
    assert not torch.equal(first.x_adv, other.x_adv)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    parts = [attack.run(model, x[rows], y[rows], seed=1, numbers=rows) for rows in order.split([70, 1, 129])]
    assert torch.equal(torch.cat([part.broken for part in parts]), first.broken[order])
    torch.testing.assert_close(torch.cat([part.x_adv for part in parts]), first.x_adv[order], rtol=0, atol=1e-12)
    assert sum(part.forwards for part in parts) == first.forwards
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: 64)
    chunked = attack.run(model, x, y, seed=1)
    assert torch.equal(chunked.broken, first.broken)
    assert chunked.forwards == first.forwards
    torch.testing.assert_close(chunked.x_adv, first.x_adv, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_eps_zero_is_the_natural_verdict(norm: str) -> None:
    x, y = samples(30)
    y = (y + (torch.arange(30) % 3 == 0)) % 4
    model = trained("smooth")
    verdict = Square(eps=0.0, norm=norm, queries=5).run(model, x, y)
    assert torch.equal(verdict.broken, model(x).argmax(1) != y)
    assert torch.equal(verdict.x_adv, x)
    assert mixed(verdict.broken)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_one_query_is_the_start(norm: str) -> None:
    x, y = samples(30)
    y = trained("smooth").eval()(x).argmax(1)
    with watched(model := trained("smooth")) as points:
        found = Square(eps=0.1, norm=norm, queries=1).run(model, x, y)
    assert found.forwards == 60
    delta = (points.inputs[1] - x).flatten(1)
    assert float((delta.norm(p=ORDERS[norm], dim=1)).min()) > 0.05
    moved = (found.x_adv != x).flatten(1).any(1)
    assert torch.equal(found.x_adv[moved], points.inputs[1][moved])
    assert moved.any()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_layout_of_x_in_memory_does_not_matter(norm: str) -> None:
    shape = (3, 4, 5)
    model, x = mlp(shape), torch.rand(20, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, attack = model(x).argmax(1), Square(eps=0.05, norm=norm, queries=10)
    found = attack(model, x, y)
    for other in (x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        torch.testing.assert_close(attack(model, other, y), found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_model_is_left_as_it_was(norm: str) -> None:
    x, y = samples(20)
    model = trained("bn")
    model(x).sum().backward()
    modes, state, before = [m.training for m in model.modules()], deepcopy(model.state_dict()), gradients(model).clone()
    x_before = x.clone()
    x_adv = Square(eps=0.1, norm=norm, queries=10)(model, x.requires_grad_(), y)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(gradients(model), before)
    assert x.grad is None
    assert torch.equal(x, x_before)
    assert not x_adv.requires_grad


def test_no_rows() -> None:
    x, y = samples(0)
    verdict = Square(eps=0.1).run(net("plain"), x, y)
    assert (verdict.x_adv.shape, verdict.forwards) == (x.shape, 0)


def test_a_tie_that_is_lost_counts() -> None:
    """The margin is zero before and after, the first of the two largest logits another one."""

    class Tied(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            up = (x.flatten(1)[:, :1] > 0.5).to(x)
            return torch.cat([up, torch.ones_like(up), 1 - up], 1)

    x = torch.full((200, 1, 4, 4), 0.45)
    found = Square(eps=0.1, queries=500).run(Tied(), x, torch.ones(200, dtype=torch.int64))
    assert bool(found.broken.all())
    assert bool((found.x_adv[:, 0, 0, 0] > 0.5).all())


class Constant(nn.Module):
    """The same logits for every input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([[1.0, 0.0]], dtype=x.dtype).expand(len(x), 2)


def test_a_change_that_does_not_lower_the_margin_is_undone() -> None:
    x, y, model = torch.full((1, 1, 8, 8), 0.5), torch.tensor([0]), Constant()
    for row in range(5):
        with watched(model) as points:
            Square(eps=0.1, queries=100).run(model, x, y, numbers=torch.tensor([row]))
        start, last = points.inputs[1], points.inputs[-1]
        assert int((last != start).sum()) == 1  # the last window is one pixel


def test_a_point_that_is_the_same_as_before_is_not_asked_again() -> None:
    """The plain twin above shows that results stay the same; a random model is asked each time."""
    x, y, model = torch.full((20, 1, 8, 8), 0.5), torch.zeros(20).long(), Constant()
    attack = Square(eps=0.1, queries=1000)
    with watched(model) as points:
        found = attack.run(model, x, y)
    different = [(point != points.inputs[1][:1]).any() for point in points.inputs[2:] if len(point) == 20]
    assert all(different)
    assert found.forwards == sum(points.rows) < 20 * 0.65 * 1001
    assert attack.run(model, x, y, votes=3).forwards > 20 * 1001
