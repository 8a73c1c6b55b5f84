"""Every check is tripped by a planted failure, with a remedy in its message, and silent on a healthy model."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import PGD, Attack, Natural, Square
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.registry import Attacks, plan_attacks
from sihg.robust.attacks.search import Search
from sihg.robust.evaluation.diagnostics import NO_GRADIENT, ModelState, inspect_outcomes
from sihg.robust.evaluation.evaluate import evaluate
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.planted import EPS, Planted, digits, healthy, quantised, reversed_gradient, tripped


def check(
    model: nn.Module, name: str, attacks: Attacks = "natural", samples: object = None, **settings: Any
) -> tuple[str, str]:
    """The result and the message of one check."""
    samples = digits() if samples is None else samples
    found = evaluate(model, samples, eps=EPS, attacks=attacks, **settings)
    return next((one.result, one.message) for one in found.checks if one.name == name)


def test_a_healthy_model_gives_no_reason_to_doubt() -> None:
    found = evaluate(healthy(), digits(), eps=EPS, attacks="natural,apgd-ce,square-300", trained_with="pgd")
    assert tripped(found) == {}
    assert found.accuracy > 0.8
    results = {one.name: one.result for one in found.checks}
    assert {name for name, result in results.items() if result != "fine"} <= {"one step", "radius", "steps", "runs"}


@pytest.mark.parametrize("attacks", ["natural", "pgd-2"])
@pytest.mark.parametrize("scale", [255, 1.2])
def test_inputs_outside_the_bounds(attacks: str, scale: float) -> None:
    with refused("data-outside-bounds"):
        evaluate(healthy(), (scale * digits().floats(), digits().y), eps=EPS, attacks=attacks)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 8.0), ("l2", 9.0)])
def test_an_implausible_radius(norm: str, eps: float) -> None:
    with refused("eps-scale", eps=eps):
        evaluate(healthy(), digits(), eps=eps, norm=norm, attacks="pgd-2")


def test_an_attack_of_radius_zero_that_breaks_samples() -> None:
    model = Planted(lambda x: 1 - x if x.requires_grad else x)
    assert check(model, "eps 0", "noise-1")[0] == "error"


class Stray(Attack):
    """Breaks the rules of its own ball."""

    factor = 0.7

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        rows = search.rows
        search.record(rows, rows.x * self.factor, -search.compute_logits(rows, rows.x))


@pytest.mark.parametrize(("factor", "code"), [(math.nan, "points-not-finite"), (0.7, "points-outside-ball")])
def test_points_that_no_attacker_may_return(factor: float, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stray, "factor", factor)
    with refused(code):
        evaluate(healthy(), digits(), eps=0.1, attacks={"mine": Stray(eps=0.1)})


class Restless(nn.Module):
    """Changes itself in every pass."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.norm, self.linear = what, nn.BatchNorm1d(64), nn.Linear(64, 10)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            if self.what == "statistics" and self.norm.running_mean is not None:
                self.norm.running_mean.add_(0.01)
            elif self.what == "parameter":
                self.linear.weight.add_(1e-3)
            elif self.what == "data":
                self.linear.weight.data.add_(1e-3)  # unseen by the tensor's version
        out: Tensor = self.linear(self.norm(x.flatten(1)))
        return out


@pytest.mark.parametrize(
    ("what", "changed"),
    [("statistics", "norm.running_mean"), ("parameter", "linear.weight"), ("data", "linear.weight")],
)
def test_a_model_that_changes_itself(what: str, changed: str) -> None:
    result, message = check(Restless(what), "state", "natural,fgsm", digits().take(slice(70)))
    assert result == "error"
    assert f" {changed}: " in message


@pytest.mark.parametrize("training", [True, False])
def test_a_training_flag_that_an_attack_changes(training: bool) -> None:
    model = Restless("nothing").train(training)
    assert check(model, "state") == ("fine", "")

    def attack(x: Tensor, _y: Tensor) -> Tensor:
        model.linear.training = not training
        return x

    found = ModelState(model)
    attack(torch.zeros(1), torch.zeros(1))
    assert found.check().result == "error"
    assert " linear.training: " in found.check().message


@pytest.mark.parametrize("training", [True, False])
def test_an_attack_that_has_the_model_train(training: bool) -> None:
    model = Restless("nothing").train(training)

    def attack(x: Tensor, _y: Tensor) -> Tensor:
        model.train()
        return x

    result, message = check(model, "state", {"mine": attack})
    assert result == "error"
    assert " the model.training and 5 more: " in message


def test_nan_in_a_buffer_is_not_a_change() -> None:
    model = Restless("nothing")
    model.register_buffer("unused", torch.tensor([math.nan, 1.0]))
    assert check(model, "state", "natural,fgsm")[0] == "fine"


def test_probabilities() -> None:
    result, message = check(Planted(behind=lambda logits: logits.softmax(1)), "logits")
    assert (result, "softmax" in message) == ("warning", True)
    assert check(Planted(behind=lambda logits: logits.log_softmax(1)), "logits") == ("fine", "")


def test_a_random_model() -> None:
    found = evaluate(Planted(lambda x: x + 0.01 * torch.randn_like(x)), digits(), eps=EPS, attacks="natural")
    assert "repeatable" in tripped(found)
    assert "eps 0" not in tripped(found)


def test_rounding_is_not_randomness() -> None:
    model = Planted(behind=lambda logits: logits * (1 + 1e-7 * torch.randn(())))
    assert check(model, "repeatable") == ("fine", "")


def test_a_saturated_loss() -> None:
    result, message = check(Planted(behind=lambda logits: 1e4 * logits), "gradients", "noise-1")
    assert result == "warning"
    assert "apgd-t and fab-t" in message


def test_masked_gradients() -> None:
    result, message = check(Planted(quantised), "gradients", "noise-1")
    assert result == "warning"
    assert "at 100%: gradients are masked, trust square" in message


def test_a_model_that_cannot_be_made_double() -> None:
    class Single(Planted):
        def __deepcopy__(self, _memo: object) -> nn.Module:
            raise TypeError("not to be copied\nat all")

    result, message = check(Single(behind=lambda logits: 1e4 * logits), "gradients", "noise-1")
    assert result == "warning"
    assert "(not to be copied): add square" in message


@pytest.mark.parametrize("way", ["detach", "no_grad", "numpy", "input alone"])
def test_a_model_without_gradients(way: str) -> None:
    class Closed(Planted):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    shift = torch.zeros(10, requires_grad=True)
    models: dict[str, nn.Module] = {
        "no_grad": Closed(),
        "detach": Planted(behind=Tensor.detach),
        "numpy": Planted(before=lambda x: torch.from_numpy(x.numpy())),
        "input alone": Planted(Tensor.detach, lambda logits: logits + shift.to(logits)),
    }
    model = models[way]
    found = evaluate(model, digits(), eps=EPS, attacks="natural,square-20")
    assert list(tripped(found)) == ["gradients"]
    assert "trust square" in tripped(found)["gradients"]
    why = {one.name: one.message for one in found.checks if one.result == "not run"}
    assert {why[name] for name in ("eps 0", "one step", "radius", "steps", "runs")} == {NO_GRADIENT}
    with refused("no-input-gradient"):
        evaluate(model, digits(), eps=EPS, attacks="pgd-2")


def test_a_black_box_attack_that_beats_the_others() -> None:
    model = Planted(behind=lambda logits: 1e4 * logits)
    assert check(model, "black box", "natural,apgd-ce,square-100")[0] == "warning"
    own = {"steps": PGD(eps=EPS, steps=5), "search": Square(eps=EPS, queries=100)}  # whatever they are called
    assert check(model, "black box", own)[0] == "warning"


def test_one_step_is_not_compared_with_a_black_box_attack() -> None:
    assert check(healthy(), "black box", "natural,fgsm,square-300")[0] == "not run"


def test_a_few_samples_more_prove_nothing() -> None:
    """Out of a small set; and in a cascade only what the attack itself broke counts."""
    samples = digits()
    plans = {"both": {"pgd-2": PGD(eps=EPS, steps=2), "square-2": Square(eps=EPS, queries=2)}}
    for more, expected in ((2, "fine"), (3, "warning")):
        first = Outcome.begin("pgd-2", torch.zeros(397, dtype=torch.bool))
        first.broken[:50] = True
        second = Outcome.begin("square-2", first.broken)
        second.broken[50 : 50 + more] = True
        joined = replace(first, attack="both", broken=second.broken, stages=(first, second))
        found = {one.name: one for one in inspect_outcomes(samples, 397, plans, [joined])}
        assert found["black box"].result == expected
    assert "another 3 samples, 0.76%, that" in found["black box"].message


def test_natural_errors_are_not_a_gain_of_the_black_box_attack() -> None:
    """Attacks with gradients may miss them, as by the rule of the last iterate: nothing is masked."""
    plans = plan_attacks("natural,pgd-2,square-2", Ball(EPS))
    for natural, expected in ((20, "fine"), (17, "warning")):
        outcomes = [
            Outcome.begin(name, torch.zeros(397, dtype=torch.bool)) for name in ("natural", "pgd-2", "square-2")
        ]
        for outcome, n in zip(outcomes, (natural, 0, 20), strict=True):
            outcome.broken[:n] = True
        found = {one.name: one.result for one in inspect_outcomes(digits(), 397, plans, outcomes)}
        assert found["black box"] == expected


@pytest.mark.parametrize(("mended", "expected"), [(4, "fine"), (5, "warning")])
def test_a_few_samples_that_an_attack_mends_prove_nothing(mended: int, expected: str) -> None:
    outcomes = [Outcome.begin(name, torch.arange(397) < n) for name, n in (("natural", 20), ("pgd-3", 20 - mended))]
    plans = plan_attacks("natural,pgd-3", Ball(EPS))
    found = {one.name: one.result for one in inspect_outcomes(digits(), 397, plans, outcomes)}
    assert found["below natural"] == expected


def test_an_attack_that_makes_the_model_better() -> None:
    own = {
        "natural": Natural(),
        "mine": PGD(eps=EPS, steps=5, last_iterate=True),
    }
    result, message = check(Planted(reversed_gradient), "below natural", own)
    assert result == "warning"
    assert message.startswith("mine leaves ")


def test_the_natural_accuracy_of_the_standard_set_counts_too() -> None:
    ball, samples = Ball(EPS), digits()
    natural, whole, other = (
        Outcome.begin(name, torch.arange(397) < n) for name, n in (("natural", 20), ("standard", 30), ("pgd-3", 10))
    )
    whole.stages = (natural,)
    found = {
        one.name: one for one in inspect_outcomes(samples, 397, plan_attacks("standard,pgd-3", ball), [whole, other])
    }
    assert found["below natural"].message.startswith("pgd-3 leaves 97.48%, more than the natural 94.96%")
    alone = {one.name: one for one in inspect_outcomes(samples, 397, plan_attacks("pgd-3", ball), [other])}
    assert alone["below natural"].result == "not run"


def test_noise_may_by_chance_make_the_model_better() -> None:
    """At a tiny radius it mends about as many samples as it breaks."""
    ball, samples = Ball(EPS), digits()
    natural, attacked = (Outcome.begin(name, torch.arange(397) < n) for name, n in (("natural", 20), ("other", 10)))
    for name, expected in (("noise-3", "fine"), ("pgd-3", "warning")):
        attacked.attack = name
        plans = plan_attacks(f"natural,{name}", ball)
        found = {one.name: one.result for one in inspect_outcomes(samples, 397, plans, [natural, attacked])}
        assert found["below natural"] == expected


@pytest.mark.parametrize(
    ("attacks", "method", "result"),
    [
        ("natural,pgd-2", "msi-hg", "warning"),
        ("fgsm,pgd-2,noise-2", "fast", "warning"),
        ("pgd-2,apgd-ce-2", "pgd", "fine"),
        ("pgd-2,square-2", "pgd", "fine"),
        ("pgd-2", "natural", "not run"),
        ("natural", "pgd", "not run"),
    ],
)
def test_the_training_attack_alone(attacks: str, method: str | None, result: str) -> None:
    found = check(healthy(), "other attacks", attacks, digits().take(slice(60)), trained_with=method)
    assert found[0] == result
    assert (f"{method} trains" in found[1]) == (result == "warning")


def test_a_subset() -> None:
    result, message = check(healthy(), "all samples", samples=digits())
    assert (result, message) == ("fine", "")
    found = evaluate(healthy(), digits(), eps=EPS, attacks="natural", samples=100)
    assert tripped(found)["all samples"].startswith("100 of 397 samples were evaluated")


def test_half_precision() -> None:
    class Half(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.bfloat16()).float()

    model = nn.Sequential(nn.Flatten(), Half(64, 10, dtype=torch.bfloat16))
    result, message = check(model, "precision")
    assert result == "warning"
    assert message.startswith("1.weight and 1 more is in half precision")


def test_half_precision_within_the_forward() -> None:
    result, message = check(Planted(behind=Tensor.bfloat16), "precision")
    assert result == "warning"
    assert "torch.bfloat16" in message


@pytest.mark.parametrize(
    ("eps", "norm", "bounds", "scale", "result"),
    [
        (8 / 255, "linf", (0.0, 1.0), 1, "fine"),
        (0.2 / 255, "linf", (0.0, 1.0), 1, "fine"),
        (8 / 255, "linf", (0.0, 255.0), 255, "warning"),
        (8 / 255, "linf", None, 2550, "warning"),  # the range is then that of the samples
        (8.0, "linf", (0.0, 255.0), 255, "fine"),
        (0.01, "l2", (0.0, 1.0), 1, "warning"),
        (0.3, "l2", (0.0, 1.0), 1, "fine"),
        (8 / 255, "l1", (0.0, 1.0), 1, "warning"),
        (1.0, "l1", (0.0, 1.0), 1, "fine"),
        (2.0, "linf", None, 1, "warning"),
        (0.5, "linf", (0.0, torch.cat([torch.ones(33), torch.full((31,), 1e5)]).view(1, 8, 8)), 1, "fine"),
    ],
)
def test_a_radius_in_another_unit(eps: float, norm: str, bounds: Any, scale: float, result: str) -> None:
    data = (scale * digits().floats(), digits().y)
    model = Planted(before=lambda x: x / scale)
    found = evaluate(model, data, eps=eps, norm=norm, bounds=bounds, attacks="natural,noise-1")
    unit = next(one for one in found.checks if one.name == "unit")
    assert unit.result == result


def test_a_radius_is_judged_by_its_features() -> None:
    x = torch.rand(60, 2)
    model = nn.Linear(2, 2)
    for eps, result in ((0.04, "fine"), (0.001, "warning")):
        found = evaluate(model, (x, model(x).argmax(1)), eps=eps, norm="l2", attacks="noise-1")
        assert next(one.result for one in found.checks if one.name == "unit") == result


def test_a_model_no_better_than_one_class() -> None:
    constant = Planted(behind=lambda logits: logits * 0 + torch.eye(10)[3])
    assert check(constant, "above chance")[0] == "warning"
    assert check(constant, "above chance", "noise-1") == ("not run", "natural is not among the attacks")
    one = digits().take((digits().y == 3).nonzero().flatten())
    assert check(constant, "above chance", samples=(one.floats(), one.y))[0] == "not run"  # and right, all of them
    assert check(healthy(), "above chance")[0] == "fine"
