"""PGD and FGSM against a plain twin, and what an attack must not do."""

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks import APGD, FAB, FGSM, PGD, Attack, base
from sihg.robust.data.batches import batches
from sihg.robust.gradients import evaluation_mode, input_gradient
from sihg.robust.methods import FastAT
from sihg.robust.threat import Bounds
from tests.robust.attacks.twins import plain_pgd
from tests.robust.methods.nets import IMAGE, gradients, net, samples, watched

SHAPES = {"smooth": IMAGE, "plain": IMAGE, "bn": IMAGE, "table": (6,)}
FEATURES = {
    "table": (torch.tensor([-0.1, 0, 0, -1, 0, 0]), torch.tensor([1.0, 1, 1.5, 1, 1, 2])),
    "smooth": (torch.zeros(1, 1, 8), torch.linspace(1, 2, 8).view(1, 1, 8)),
}


@cache
def _trained(kind: str) -> nn.Module:
    """A network that attacks break here and there."""
    model = net(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches(samples(120, SHAPES[kind]), size=20, epochs=5):
        FastAT(eps=0.05).step(model, batch, optimizer)
    return model


def trained(kind: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return deepcopy(_trained(kind)).to(dtype)


def mixed(broken: Tensor) -> bool:
    return 0.05 < float(broken.double().mean()) < 0.95


def bounds_of(name: str, kind: str) -> Bounds:
    return {"none": None, "scalars": (0.0, 1.0), "features": FEATURES[kind]}[name]


@pytest.mark.parametrize("last_iterate", [False, True])
@pytest.mark.parametrize("kind", ["smooth", "table"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
def test_verdicts_are_those_of_the_plain_twin(bounds: str, norm: str, kind: str, last_iterate: bool) -> None:
    x, y = samples(100, SHAPES[kind])
    model = trained(kind).eval()
    eps = {"smoothlinf": 0.1, "smoothl2": 0.5, "tablelinf": 0.15, "tablel2": 0.25}[kind + norm]
    attack = PGD(
        eps=eps,
        steps=2,
        restarts=2,
        norm=norm,
        bounds=bounds_of(bounds, kind),
        last_iterate=last_iterate,
        step_size=eps,
    )
    with watched(model) as points:
        verdict = attack.run(model, x, y, seed=4)
    twin = plain_pgd(attack, model, x, y, seed=4)
    assert verdict.broken.tolist() == (twin.any_end if last_iterate else twin.any_iterate)
    assert verdict.passes == points.rows_with_gradient() == twin.passes
    assert mixed(verdict.broken)
    logits = model(verdict.x_adv)
    assert (logits.argmax(1) != y).tolist() == verdict.broken.tolist()
    others = torch.stack([row[torch.arange(len(row)) != label].max() for row, label in zip(logits, y, strict=True)])
    torch.testing.assert_close(verdict.margin, logits[range(100), y] - others, rtol=0, atol=1e-12)
    assert_inside(attack, x, verdict.x_adv)


def assert_inside(attack: Attack, x: Tensor, x_adv: Tensor) -> None:
    order = float("inf") if attack.norm == "linf" else 2
    assert float(torch.linalg.vector_norm((x_adv - x).flatten(1), ord=order, dim=1).max()) <= attack.eps + 1e-6
    if attack.bounds is not None:
        low, high = (torch.as_tensor(b, dtype=x.dtype) for b in attack.bounds)
        assert bool((x_adv >= low).all())
        assert bool((x_adv <= high).all())


def test_points_keep_their_bounds_to_the_last_bit() -> None:
    """x + (high - x) may round to more than high."""
    high = torch.tensor(0.7)
    x = 0.7 * torch.rand(500, 6, generator=torch.Generator().manual_seed(0))
    assert bool((x + (high - x) > high).any())
    attack = FGSM(eps=0.8, bounds=(-0.1, 0.7), last_iterate=True)
    x_adv = attack(net("table", dtype=torch.float32), x, torch.zeros(500, dtype=torch.int64))
    assert float(x_adv.max()) == float(high)
    assert float(x_adv.min()) == float(torch.tensor(-0.1))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_verdicts_in_single_precision(norm: str) -> None:
    n = 2000 if norm == "linf" else 1000
    x, y = samples(n, (6,), dtype=torch.float32)
    model = trained("table", torch.float32).eval()
    attack = PGD(eps=0.15 if norm == "linf" else 0.25, steps=2, norm=norm)
    verdict = attack.run(model, x, y)
    twin = torch.tensor(plain_pgd(attack, model, x, y).any_iterate)
    assert int((verdict.broken != twin).sum()) <= n // 1000
    assert mixed(twin)
    assert_inside(attack, x, verdict.x_adv)


def test_any_iterate_breaks_at_least_what_the_last_one_does() -> None:
    x, y = samples(200)
    model = trained("smooth")
    verdicts = [PGD(eps=0.1, steps=5, last_iterate=last).run(model, x, y).broken for last in (False, True)]
    assert bool((verdicts[0] | ~verdicts[1]).all())
    assert mixed(verdicts[0])


def test_restarts_count_runs_and_later_ones_see_survivors() -> None:
    x, y = samples(100)
    model = trained("smooth")
    one, four = (PGD(eps=0.08, steps=3, restarts=runs, last_iterate=True) for runs in (1, 4))
    first = one.run(model, x, y)
    assert first.passes == 3 * 100
    with watched(model) as points:
        more = four.run(model, x, y)
    ends = [rows for rows, on in zip(points.rows, points.recorded, strict=True) if not on]
    assert len(ends) == 4
    assert ends[0] == 100
    assert ends[1] == 100 - int(first.broken.sum())
    assert ends == sorted(ends, reverse=True)
    assert more.passes == 3 * sum(ends)
    assert bool((more.broken | ~first.broken).all())
    assert torch.equal(more.x_adv[first.broken], first.x_adv[first.broken])


def test_fgsm_is_one_step_of_eps_from_the_image() -> None:
    x, y = samples(60)
    model = trained("plain")
    for norm in ("linf", "l2"):
        for last in (True, False):
            by_name = FGSM(eps=0.1, norm=norm, last_iterate=last).run(model, x, y, seed=1)
            same = PGD(eps=0.1, norm=norm, steps=1, step_size=0.1, random_start=False, last_iterate=last)
            verdict = same.run(model, x, y)
            assert torch.equal(by_name.x_adv, verdict.x_adv)
            assert torch.equal(by_name.broken, verdict.broken)
            assert by_name.passes == verdict.passes
        with evaluation_mode(model):
            g = input_gradient(model, x, y)
        step = g.sign() if norm == "linf" else g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        end = FGSM(eps=0.1, norm=norm, last_iterate=True)(model, x, y)
        torch.testing.assert_close(end, (x + 0.1 * step).clamp(0, 1), rtol=0, atol=1e-12)
    assert torch.equal(FGSM(eps=0.0)(model, x, y), x)


def test_fgsm_counts_what_is_wrong_without_it() -> None:
    """As every attack does that counts any iterate: the start is one."""
    x, y = samples(60)
    model = trained("plain")
    with evaluation_mode(model):
        y[:5] = (model(x[:5]).argmax(1) + 1) % 4
    found = FGSM(eps=0.1).run(model, x, y)
    assert found.broken[:5].all()
    assert torch.equal(found.x_adv[:5], x[:5])
    last = FGSM(eps=0.1, last_iterate=True).run(model, x, y)
    assert bool((found.broken | ~last.broken).all())
    assert not torch.equal(last.x_adv[:5], x[:5])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("last_iterate", [False, True])
def test_eps_zero_is_the_natural_verdict(norm: str, last_iterate: bool) -> None:
    x, y = samples(50)
    y = (y + (torch.arange(50) % 3 == 0)) % 4
    model = trained("smooth")
    verdict = PGD(eps=0.0, steps=2, norm=norm, last_iterate=last_iterate).run(model, x, y)
    assert torch.equal(verdict.broken, model(x).argmax(1) != y)
    assert torch.equal(verdict.x_adv, x)
    assert mixed(verdict.broken)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_results_depend_on_the_seed_alone(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(300, (6,))
    model = trained("table")
    attack = PGD(eps=0.15, steps=3, restarts=2, norm=norm)
    first, other = attack.run(model, x, y, seed=1), attack.run(model, x, y, seed=2)
    assert torch.equal(attack(model, x, y, seed=1), first.x_adv)
    assert not torch.equal(first.x_adv, other.x_adv)
    for chunk in (64, 128, 512):
        monkeypatch.setattr(base, "rows_at_once", lambda _shape, rows=chunk: rows)
        again = attack.run(model, x, y, seed=1)
        assert torch.equal(again.broken, first.broken)
        assert again.passes == first.passes
        torch.testing.assert_close(again.x_adv, first.x_adv, rtol=0, atol=1e-12)


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
    with pytest.raises(InputError, match=r"numbers has shape \(10,\): it needs one for each of 300 rows"):
        attack.run(model, x, y, numbers=torch.arange(10))
    with pytest.raises(InputError, match="row 65 of x has a value that is not finite"):
        attack.run(model, changed(x, 1, float("nan")), y, numbers=torch.arange(64, 364))


def test_progress_hears_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "rows_at_once", lambda _shape: 64)
    x, y = samples(150, (6,))
    heard: list[int] = []
    PGD(eps=0.1, steps=1).run(trained("table"), x, y, progress=heard.append)
    assert heard == [64, 128, 150]


def test_rows_at_once() -> None:
    """About as many values whatever the shape, in multiples of the 64 rows that are drawn together."""
    shapes = ((1, 28, 28), (3, 32, 32), (3, 224, 224), (6,), ())
    assert [base.rows_at_once(shape) for shape in shapes] == [1024, 256, 64, 1024, 1024]


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
def test_labels_of_any_whole_type(dtype: torch.dtype) -> None:
    x, y = samples(30)
    model = trained("smooth")
    assert torch.equal(PGD(eps=0.1)(model, x, y.to(dtype)), PGD(eps=0.1)(model, x, y))


X, Y = samples(300, (6,))


def changed(rows: Tensor, row: int, value: float) -> Tensor:
    rows = rows.clone()
    rows[row] = value
    return rows


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (changed(X, 270, float("nan")), Y, "row 270 of x has a value that is not finite: clean the data"),
        (X, changed(Y, 280, 4), "row 280 of y is 4, but the model has 4 outputs: labels count from 0"),
        (X, changed(Y, 280, -100), "row 280 of y is -100: labels are whole numbers from 0 on"),
        (X, Y[:5], r"y has shape \(5,\) and type torch.int64: it needs one class number for each of 300 rows"),
        (X, Y.double(), "type torch.float64: it needs"),
        (X, Y > 0, "type torch.bool: it needs"),
        ((255 * X).to(torch.uint8), Y, "x is torch.uint8, attacks need floats: images as x / 255"),
        (X[:, 0], Y, r"x has shape \(300,\): give a batch"),
        (255 * X, Y, r"outside its bounds \[0, 1\]: scale the data"),
    ],
)
def test_samples_that_cannot_be_attacked(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PGD(eps=0.1, steps=2)(trained("table"), x, y)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("last_iterate", [False, True])
def test_a_model_that_has_left_the_numbers(value: float, last_iterate: bool) -> None:
    model = net("table")
    with torch.no_grad():
        next(model.parameters())[0, 0] = value
    with pytest.raises(InputError, match="the model gives logits that are not finite: look at its weights"):
        PGD(eps=0.1, last_iterate=last_iterate)(model, X, Y)
    assert model.training


def test_a_model_whose_output_is_none() -> None:
    with pytest.raises(InputError, match=r"an output of shape \(10, 6, 1\) for 10 samples: it must be \(n, classes\)"):
        PGD(eps=0.1)(nn.Unflatten(1, (6, 1)), X[:10], Y[:10])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be a whole number >= 1, got 0: "),
        ({"steps": 2.5}, "steps must be a whole number >= 1, got 2.5: "),
        ({"restarts": 0}, "restarts must be a whole number >= 1, got 0: "),
        ({"step_size": 0.0}, "step_size must be finite and > 0, got 0.0: leave it out for 2.5 eps / steps"),
        ({"eps": 8.0}, "eps 8 is more than the whole range of the data, 1: "),
        ({"norm": "l1"}, "unknown norm 'l1': choose from linf, l2"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PGD(**{"eps": 0.1, **settings})


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


def test_a_gradient_that_is_no_number() -> None:
    class Rooted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            root = (x[:, 0] - x[:, 0].detach()).abs().sqrt()[:, None]  # 0, with an infinite slope
            return torch.cat([root, 1 - root], 1)

    with pytest.raises(InputError, match="the model's gradient at row 0 is not finite: look for a root, a logarithm"):
        PGD(eps=0.1)(Rooted(), X, Y.clamp(max=1))
