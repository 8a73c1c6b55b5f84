"""No remedy names what was run: a table of evaluations and the remedies for them."""

import re

import pytest
import torch

from sihg.robust.attacks.outcome import Outcome, join_outcomes
from sihg.robust.attacks.registry import plan_attacks
from sihg.robust.evaluation import evaluate
from sihg.robust.evaluation.remedies import add_black_box, add_strength, has_standard
from sihg.robust.threat import Ball
from tests.robust.planted import EPS, Planted, digits, healthy, quantised, tripped

ONE_BY_ONE = "apgd-ce,apgd-t,fab-t,square"


@pytest.mark.parametrize(
    ("attacks", "has", "strength"),
    [
        ("natural,pgd-20", False, "add standard"),
        ("apgd-t,square", False, "add standard"),
        ("natural,standard", True, "add apgd-t-100-5 and square-5000-5"),
        (ONE_BY_ONE, True, "add apgd-t-100-5 and square-5000-5"),
        ("standard,apgd-t-100-5", True, "add square-5000-5"),
        ("standard,square-5000-5", True, "add apgd-t-100-5"),
        ("standard,apgd-t-50-3,square-100-3", True, "look for what hides gradients in the model's forward"),
    ],
)
def test_more_strength(attacks: str, has: bool, strength: str) -> None:
    plans = plan_attacks(attacks, Ball(EPS))
    assert (has_standard(plans), add_strength(plans)) == (has, strength)
    assert has_standard(plan_attacks(attacks, Ball(EPS), radii=[0, EPS])) == has  # a curve


@pytest.mark.parametrize(
    ("attacks", "expected"),
    [
        ("natural,pgd-20", "add square"),
        ("pgd-20,noise", "add square"),
        ("pgd-20,square-7", "trust square-7, which breaks 3 of 10 samples"),
        ("natural,standard", "trust square in standard, which breaks 3 of 10 samples"),
        (
            "square,transfer:other",
            "trust square, which breaks 3 of 10 samples and transfer:other, which breaks 3 of 10 samples",
        ),
    ],
)
def test_a_black_box_to_trust(attacks: str, expected: str) -> None:
    plans = plan_attacks(attacks, Ball(EPS), source=lambda _: healthy())
    found = {}
    for name, plan in plans.items():
        for stage in plan:
            outcome = Outcome.begin(stage, torch.zeros(10, dtype=torch.bool))
            outcome.broken[:3] = True
            found[name if len(plan) == 1 else f"{name}: {stage}"] = outcome
    assert add_black_box(plans, join_outcomes(plans, found)) == expected


@pytest.mark.parametrize("attacks", ["natural,pgd-20", "pgd-20,square-50", "natural,fgsm,pgd-100,pgd-20-5", ONE_BY_ONE])
@pytest.mark.parametrize("planted", ["quantised", "saturated"])
def test_no_warning_names_what_was_run(attacks: str, planted: str) -> None:
    model = Planted(quantised) if planted == "quantised" else Planted(behind=lambda logits: 1e4 * logits)
    found = tripped(evaluate(model, digits().take(slice(100)), eps=EPS, attacks=attacks))
    assert found
    run = {*attacks.split(","), *(["standard"] if attacks == ONE_BY_ONE else [])}
    for name in found.keys() - {"gradients"}:
        added = found[name].rpartition("add ")[2] if "add " in found[name] else ""
        assert run.isdisjoint(re.split(r",? (?:and |or )?", added)), (name, found[name])
        if "trust " in found[name] and "trust the attack" not in found[name]:
            assert "which breaks" in found[name]
