"""PGD and FGSM against a plain twin, and what an attack must not do."""

import pytest
import torch

from sihg.robust.attacks import FGSM, PGD, runner
from sihg.robust.gradients import evaluation_mode, input_gradient
from tests.robust.attacks.trained_models import SHAPES, assert_inside, bounds_of, mixed, trained
from tests.robust.attacks.twins import plain_pgd
from tests.robust.methods.nets import net, samples, watched

EPS = {"smoothlinf": 0.1, "smoothl2": 0.5, "smoothl1": 1.5, "tablelinf": 0.15, "tablel2": 0.25, "tablel1": 0.35}


@pytest.mark.parametrize("last_iterate", [False, True])
@pytest.mark.parametrize("kind", ["smooth", "table"])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
def test_verdicts_are_those_of_the_plain_twin(bounds: str, norm: str, kind: str, last_iterate: bool) -> None:
    x, y = samples(100, SHAPES[kind])
    model = trained(kind).eval()
    eps = EPS[kind + norm]
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
        monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape, rows=chunk: rows)
        again = attack.run(model, x, y, seed=1)
        assert torch.equal(again.broken, first.broken)
        assert again.passes == first.passes
        torch.testing.assert_close(again.x_adv, first.x_adv, rtol=0, atol=1e-12)
