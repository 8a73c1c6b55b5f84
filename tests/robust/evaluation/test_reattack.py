"""Checks that attack again: tripped by what is planted, in usual evaluations too, and within their passes."""

import math
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.robust import models
from sihg.robust.attacks import PGD, Attack
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.registry import plan_attacks
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.attacks.search import Search
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.evaluation import reattack
from sihg.robust.evaluation.evaluate import evaluate
from sihg.robust.evaluation.reattack import ALL_CHECKS, MIN_PASSES, Probe, reattack_checks
from sihg.robust.threat import Ball
from sihg.store.schema import Check
from tests.robust.planted import EPS, Planted, digits, healthy, quantised, reversed_gradient, tripped

NAMES = ["one step", "radius", "steps", "runs"]


def attacked_again(
    model: nn.Module,
    samples: Samples | None = None,
    ball: Ball | None = None,
    attacks: str = "natural,apgd-ce",
) -> dict[str, Check]:
    """The checks that attack again, with all the passes they want."""
    samples, ball = samples or digits(), ball or Ball(EPS)
    plans = plan_attacks(attacks, ball)
    outcomes = run_attacks(model, samples, plans)
    return {one.name: one for one in reattack_checks(model, samples, ball, plans, outcomes, 0, share=math.inf)}


def test_a_healthy_model_passes_all_checks() -> None:
    assert {name: one.result for name, one in attacked_again(healthy()).items()} == dict.fromkeys(NAMES, "fine")


@pytest.mark.parametrize("bounds", [None, (torch.zeros(1, 8, 8), torch.ones(1, 8, 8))])
@pytest.mark.parametrize(("norm", "eps"), [("l2", 0.3), ("l1", 1.0)])
def test_a_healthy_model_in_another_norm_and_bounds(norm: str, eps: float, bounds: Any) -> None:
    found = attacked_again(healthy(), ball=Ball(eps, norm, bounds))
    assert [(one.name, one.result) for one in found.values()] == [
        (name, "fine") for name in ("one step", "radius", "steps", "runs")
    ]


class Remembering(nn.Module):
    """Knows the samples: far from all of them it answers with the label of the nearest."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self.net, self.x, self.y = healthy(), samples.floats().flatten(1), samples.y

    def forward(self, x: Tensor) -> Tensor:
        distance, nearest = torch.cdist(x.detach().flatten(1), self.x, p=math.inf).min(1)
        known = 20.0 * nn.functional.one_hot(self.y[nearest], 10) + 0 * x.flatten(1).sum(1, keepdim=True)
        return torch.where((distance > 1.2 * EPS)[:, None], known, self.net(x))


def test_accuracy_that_rises_with_the_radius() -> None:
    samples = digits().take(slice(100))
    found = attacked_again(Remembering(samples), samples)["radius"]
    assert found.result == "warning"
    assert "as eps grows from 0.05 to 0.1" in found.message
    assert "gradients are masked; add square" in found.message


def test_accuracy_that_holds_at_half_the_range() -> None:
    found = attacked_again(Planted(quantised))["radius"]
    assert found.result == "warning"
    assert "at eps 0.5, half the range or more" in found.message
    assert "gradients are masked; add square" in found.message


WIDTH = EPS / 40  # of the slit


class Slit(nn.Module):
    """Errs in a slit beside each sample, to which gradients point and over which long steps jump to and fro."""

    def forward(self, x: Tensor) -> Tensor:
        margin = ((x - 0.25) % 0.5 - EPS / 2).abs() - WIDTH / 2
        second = x > 0.5
        return 50 * torch.cat([torch.where(second, 0, margin), torch.where(second, margin, 0)], 1)


def test_steps_and_runs_that_find_more() -> None:
    found = attacked_again(Slit(), as_samples(slits()), attacks="natural,pgd-20")
    for name, what in (("steps", "pgd-100 breaks"), ("runs", "pgd-20-5 breaks")):
        assert found[name].result == "warning"
        assert what in found[name].message
        assert f"add {what.partition(' ')[0]} or standard" in found[name].message


def hidden(x: Tensor) -> Tensor:
    """The gradient is right at images of whole pixel values alone."""
    whole = ((255 * x).round() / 255 - x).abs().flatten(1).amax(1) < 1e-6
    return torch.where(whole[:, None, None, None], x, reversed_gradient(x))


def test_one_step_that_beats_several() -> None:
    found = attacked_again(Planted(hidden))["one step"]
    assert found.result == "warning"
    assert "gradients are masked; add square" in found.message


@pytest.mark.parametrize("attacks", ["natural,pgd-20", "natural,fgsm,pgd-20", "natural,fgsm,pgd-50-2"])
def test_masked_gradients_are_seen_in_a_usual_evaluation(attacks: str) -> None:
    """What it has found counts for all samples, what it has not is tried on some."""
    found = evaluate(Planted(hidden), digits(), eps=EPS, attacks=attacks)
    message = tripped(found)["one step"]
    assert message.endswith("gradients are masked; add square")
    assert ("of 397 samples" in message) == ("fgsm" in attacks)
    assert f", {attacks.rpartition(',')[2]} only " in message
    assert "one step" not in tripped(evaluate(healthy(), digits(), eps=EPS, attacks=attacks))


def slits() -> tuple[Tensor, Tensor]:
    y = torch.arange(100) % 2
    return 0.25 + 0.5 * y.double()[:, None] + 1e-9, y


def test_more_steps_and_runs_in_a_usual_evaluation() -> None:
    found = tripped(evaluate(Slit(), slits(), eps=EPS, attacks="natural,pgd-20"))
    assert "of 100 samples pgd-100 breaks " in found["steps"]
    assert "of 100 samples pgd-20-5 breaks " in found["runs"]


def test_what_the_evaluation_has_found_counts() -> None:
    """As much as further attacks would find: the figure is not in doubt."""
    found = tripped(evaluate(Slit(), slits(), eps=EPS, attacks="natural,pgd-20,pgd-120,pgd-20-9"))
    assert {"steps", "runs"}.isdisjoint(found)


def test_a_short_attack_is_compared_with_longer_ones() -> None:
    """What it missed is measured: the checks compare with the evaluation alone."""
    found = tripped(evaluate(healthy(), digits(), eps=4 * EPS, attacks="natural,noise-1"))
    for name, attack in (("steps", "pgd-100"), ("runs", "pgd-20-5")):
        assert f" samples {attack} breaks " in found[name]
        assert ", all attacks of the evaluation together " in found[name]
        assert found[name].endswith(f": add {attack} or standard")


def test_the_rule_of_the_last_iterate_is_kept() -> None:
    """Otherwise the checks would find more than the evaluation by their rule, not by steps and restarts."""
    found = evaluate(healthy(), digits(), eps=EPS, attacks="natural,pgd-50-5", last_iterate=True)
    assert set(tripped(found)) <= {"no black box", "other attacks"}


@pytest.fixture
def counted_out(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """What the checks come to after an evaluation of so many passes and forward passes, and without a minimum."""
    monkeypatch.setattr(reattack, "MIN_PASSES", 0)
    monkeypatch.setattr(reattack, "MAX_PRODUCTS", 0)

    def run(passes: int, forwards: int = 0, **settings: Any) -> dict[str, str]:
        outcome = Outcome.begin("noise-1", torch.zeros(397, dtype=torch.bool))
        outcome.passes, outcome.forwards = passes, forwards
        ball = Ball(EPS)
        found = reattack_checks(healthy(), digits(), ball, plan_attacks("noise-1", ball), [outcome], 0, **settings)
        return {one.name: one.message if one.result == "not run" else one.result for one in found}

    return run


def test_a_tiny_share_of_the_passes_allows_nothing(counted_out: Callable[..., dict[str, str]]) -> None:
    found = counted_out(1000, share=0.01)
    assert found == dict.fromkeys(NAMES, "with it the checks would take more than 10 passes")
    assert counted_out(0, 3 * 4 * 22 * 32)["one step"] == "fine"  # three forward passes are one
    assert counted_out(0, 3 * 4 * 21 * 32)["one step"] != "fine"


@pytest.mark.parametrize(
    ("budget", "samples", "run"),
    [
        (32 * 65 // 3 - 1, 0, 0),
        (32 * 65 // 3 + 1, 32, 1),
        (ALL_CHECKS, 32, 4),
        (32 * 264 + 64 * 65 // 3, 32, 4),
        (32 * 264 + 64 * 65 // 3 + 1, 64, 4),
        (32 * 264 + 128 * 65 // 3 + 1, 128, 4),
        (4 * 256 * 65 // 3 + 4, 256, 4),
    ],
)
def test_as_many_samples_as_passes_allow(
    budget: int, samples: int, run: int, counted_out: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step takes 1 1/3 passes, with it 20 1/3; the others need 264 on 32 samples, which stay for them.

    More than 32 samples are also for a check that takes at most its equal part: of four checks, a quarter.
    """
    asked: list[int] = []
    plain = Probe.broken

    def broken(probe: Probe, attack: PGD, rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return plain(probe, attack, rows)

    monkeypatch.setattr(Probe, "broken", broken)
    found = counted_out(4 * budget)
    assert asked[:1] == ([samples] if samples else [])
    assert [name for name, result in found.items() if "passes" not in result] == NAMES[:run]


def test_passes_that_are_spent_are_gone() -> None:
    """Those that were taken: a sample that is broken takes no more."""
    ball = Ball(EPS)
    plans = plan_attacks("noise-1", ball)
    probe = Probe(healthy(), digits(), ball, 0, plans, run_attacks(healthy(), digits(), plans), 30_000.0)
    rows, attack = torch.arange(100), PGD(eps=EPS)
    (outcome,) = run_attacks(healthy(), digits().take(rows), {"": {"": attack}})
    for _ in range(2):  # what is known costs nothing
        assert torch.equal(probe.broken(attack, rows), outcome.broken)
        assert probe.passes == 30_000 - outcome.passes - outcome.forwards / 3
    assert 100 < outcome.passes < 2000


@pytest.mark.parametrize("samples", [60, 397])
def test_a_short_evaluation_has_all_checks(samples: int) -> None:
    for attacks in ("natural,pgd-20", "natural,fgsm", "pgd-2", "pgd-5", "fgsm,pgd-20", "noise-1"):
        found = evaluate(healthy(), digits(), eps=EPS, attacks=attacks, samples=samples)
        assert "not run" not in {one.result for one in found.checks if one.name in NAMES}
    found = evaluate(healthy(), digits(), eps=EPS, attacks="natural")
    assert {one.message for one in found.checks if one.name in NAMES} == {"there is no attack"}


@pytest.mark.parametrize(
    ("model", "shape", "passes"),
    [
        ("small-cnn", (1, 28, 28), MIN_PASSES),
        ("preact-resnet8", (3, 32, 32), 26_663),
        ("preact-resnet18", (3, 32, 32), ALL_CHECKS),
    ],
)
def test_models_of_any_usual_size_have_passes_for_all_checks(model: str, shape: tuple[int, ...], passes: int) -> None:
    samples = as_samples((torch.rand(60, *shape), torch.arange(60) % 10))
    ball = Ball(EPS)
    probe = Probe(models.build(model, shape, 10).eval(), samples, ball, 0, {}, [])
    assert int(probe.min_passes()) == passes >= ALL_CHECKS


def test_a_mid_size_model_after_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fewest samples, every check; whatever the clock says."""
    monkeypatch.setattr(reattack, "MIN_PASSES", 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.build("preact-resnet8", (1, 8, 8), 10, width=0.25).eval()
    for attacks in ("natural,fgsm", "pgd-5"):
        usual = evaluate(model, digits(), eps=EPS, attacks=attacks, samples=200)
        assert "not run" not in {one.result for one in usual.checks if one.name in NAMES}
        with monkeypatch.context() as patched:  # clocks that make no sense
            for clock in ("perf_counter", "monotonic", "time"):
                patched.setattr(time, clock, random.Random(0).random)
            assert evaluate(model, digits(), eps=EPS, attacks=attacks, samples=200).checks == usual.checks


class Large(nn.Module):
    """The healthy network, and layers that multiply much."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.conv, self.linear = healthy(), nn.Conv2d(1, 2, 3), nn.Linear(72, 500)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + 0 * self.linear(self.conv(x).flatten(1)).sum(1, keepdim=True)  # type: ignore[no-any-return]


def test_a_large_model_has_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Large().eval()
    products = 64 * 64 + 64 * 10 + (6 * 6 * 2) * (3 * 3) + 72 * 500
    for passes in (10.0, 1e9):
        for name in ("MIN_PRODUCTS", "MAX_PRODUCTS"):
            monkeypatch.setattr(reattack, name, 3 * products * passes)
        found = evaluate(model, digits(), eps=EPS, attacks="noise-1")
        messages = {one.message for one in found.checks if one.name in NAMES}
        small = "with it the checks would take more than "
        assert all(message.startswith(small) for message in messages) == (passes == 10)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("attacks", ["natural,pgd-50-10", "natural,pgd-100-10"])
def test_radii_are_compared_by_one_attack(attacks: str) -> None:
    """A strong attack of the evaluation is no match for a weak one in a larger ball."""
    for eps in (0.4, 0.45):
        found = evaluate(healthy(), digits(), eps=eps, attacks=attacks)
        assert "radius" not in tripped(found)


def test_other_kinds_of_pgd_are_not_reused() -> None:
    class Idle(PGD):
        def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
            search.record_clean()

    others: list[Attack] = [
        Idle(eps=EPS),
        PGD(eps=EPS, step_size=1e-9),
        PGD(eps=EPS, last_iterate=True, step_size=1e-9),
    ]
    others.append(PGD(eps=EPS, step_size=1e-9, random_start=False))
    for other in others:
        found = evaluate(healthy(), digits(), eps=EPS, attacks={"natural": "natural", "mine": other})
        results = {one.name: one.result for one in found.checks}
        assert {results[name] for name in NAMES[:2]} == {"fine"}
        assert {results[name] for name in NAMES[2:]} == {"warning"}  # what an idle attack leaves, others find


def test_a_model_that_fails_in_a_larger_ball() -> None:
    """Without bounds the larger balls go below zero."""

    class Logarithm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = x.log().sum(1, keepdim=True)
            return torch.cat([z - 3, 3 - z], 1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = 1 + 9 * torch.rand(200, 2)
    y = Logarithm()(x).argmax(1)
    found = evaluate(Logarithm(), (x, y), eps=0.1, attacks="natural,pgd-20", bounds=None)
    results = {one.name: (one.result, one.message) for one in found.checks}
    assert results["radius"][0] == "not run"
    assert "logits are NaN or infinite" in results["radius"][1]
    assert results["one step"][0] == results["steps"][0] == "fine"


def test_a_proof_is_not_an_attack() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = evaluate(model, digits(), eps=0.01, attacks="natural,certified")
    assert {one.message for one in found.checks if one.name in NAMES} == {"there is no attack"}


class Counting(nn.Module):
    """Counts the samples it sees."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return healthy()(x)  # type: ignore[no-any-return]


def test_the_checks_keep_to_their_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the attacks, some samples are seen once, and 16 six times; each pass sees a sample once."""
    monkeypatch.setattr(reattack, "MIN_PASSES", 0)
    monkeypatch.setattr(reattack, "MAX_PRODUCTS", 0)
    for attacks in ("fgsm", "pgd-20", "pgd-60", "pgd-60-20", "pgd-200-9"):
        model = Counting()
        found = evaluate(model, digits().take(slice(100)), eps=EPS, attacks=attacks)
        seen = found.outcomes[0].passes + found.outcomes[0].forwards
        assert model.seen - seen <= 0.25 * seen + 120
        fine = [one.name for one in found.checks if one.name in NAMES and one.result == "fine"]
        assert fine == {"fgsm": [], "pgd-20": NAMES[:1], "pgd-200-9": NAMES}.get(attacks, fine)


def test_few_samples_or_no_radius_run_no_check() -> None:
    for samples, eps, why in ((digits().take(slice(49)), EPS, "fewer than 50 samples"), (digits(), 0.0, "eps is 0")):
        found = attacked_again(healthy(), samples, Ball(eps))
        assert {(one.result, one.message) for one in found.values()} == {("not run", why)}
