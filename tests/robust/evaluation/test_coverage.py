"""Weak evaluations are called weak, by which attacks were run; and strong ones are not."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from sihg.robust.attacks import Attack
from sihg.robust.attacks.registry import plan_attacks
from sihg.robust.attacks.search import Search
from sihg.robust.evaluation import evaluate, minimum_eps, robust_curve
from sihg.robust.evaluation.coverage import inspect_coverage
from sihg.robust.threat import Ball
from sihg.store.schema import Check
from tests.robust.planted import EPS, digits, healthy, tripped

NAMES = ("weak attacks", "few steps", "no black box", "other attacks")
WIDE = 4 * EPS  # where one step and many differ much


def covered(attacks: Any, trained_with: str | None = "pgd", **settings: Any) -> dict[str, Check]:
    plans = plan_attacks(attacks, Ball(EPS), source=lambda _: healthy())
    found = list(inspect_coverage(plans, trained_with, **settings))
    assert tuple(check.name for check in found) == NAMES
    return {check.name: check for check in found}


def results(checks: dict[str, Check]) -> str:
    """A letter per check: w for a warning, f for fine, - for not run."""
    return "".join({"warning": "w", "fine": "f", "not run": "-"}[check.result] for check in checks.values())


@pytest.mark.parametrize(
    ("attacks", "expected"),
    [
        ("natural", "----"),
        ("certified", "----"),
        ("natural,fgsm", "wwww"),
        ("pgd-5", "wwww"),
        ("natural,fgsm,pgd-19", "wwww"),
        ("natural,pgd-20", "wfww"),
        ("pgd-5-10", "fwww"),
        ("pgd-50-10", "ffww"),
        ("apgd-ce", "wfwf"),
        ("apgd-ce-100-5", "ffwf"),
        ("apgd-t", "ffwf"),
        ("fab-t-10", "fwwf"),
        ("pgd-20,noise", "wfww"),
        ("noise", "w-w-"),
        ("square", "w-ff"),
        ("square-100-5", "w-ff"),
        ("fgsm,square", "fwff"),
        ("apgd-ce,square", "ffff"),
        ("pgd-20,transfer:other", "wffw"),
        ("pgd-50-10,transfer:other", "fffw"),
        ("mi-fgsm-10", "wwww"),
        ("standard", "ffff"),
        ("natural,standard", "ffff"),
        ("natural,fgsm,standard", "ffff"),
    ],
)
def test_which_attacks_are_weak(attacks: str, expected: str) -> None:
    assert results(covered(attacks)) == expected


def test_the_method_of_the_training() -> None:
    assert results(covered("pgd-2", None)) == results(covered("pgd-2", "natural")) == "www-"
    assert covered("pgd-2", None)["other attacks"].message == "trained_with is not given"


def test_the_messages_name_what_was_run_and_what_to_add() -> None:
    found = covered("natural,fgsm,pgd-5,noise-2", "msi-hg")
    for name, run, remedy in (
        ("weak attacks", "only fgsm, pgd-5, noise-2:", "add standard"),
        ("few steps", "only fgsm, pgd-5:", "add pgd-20 or standard"),
        ("no black box", "only fgsm, pgd-5, noise-2:", "add square or standard"),
        ("other attacks", "msi-hg trains against", "add standard"),
    ):
        assert run in found[name].message
        assert found[name].message.endswith(remedy)
    assert "no attack with gradients was run, only square-9" in covered("square-9")["weak attacks"].message


def test_masked_gradients_excuse_the_lack_of_attacks_with_gradients() -> None:
    assert results(covered("square", masked=True)) == "f-ff"
    assert results(covered("noise", masked=True)) == "w-w-"


def test_where_no_attack_can_change_the_result() -> None:
    assert results(covered("natural,fgsm", decided=True)) == "ffff"
    assert results(covered("natural", decided=True)) == "----"


@dataclass(frozen=True, kw_only=True, eq=False)
class Own(Attack):
    """An attack of which nothing is known."""

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        search.record_clean()


@dataclass(frozen=True, kw_only=True, eq=False)
class Described(Own):
    uses_gradients: ClassVar[bool | None] = True
    steps: int = 30
    restarts: int = 3


def test_attacks_of_a_user() -> None:
    """What is not known may be what is missing; what they say of themselves counts."""
    function = {"natural": "natural", "mine": lambda x, _y: x}
    for attacks in (function, {"mine": Own(eps=EPS)}, {"fgsm": "fgsm", "mine": Own(eps=EPS)}):
        found = covered(attacks)
        assert results(found) == "---f"
        assert {check.message.partition(" is not known")[0] for check in found.values() if check.message} == {
            "what mine does"
        }
    assert results(covered({"mine": Own(eps=EPS), "standard": "standard"})) == "ffff"
    assert results(covered({"mine": Described(eps=EPS)})) == "ffwf"
    assert results(covered({"mine": Described(eps=EPS, steps=3, restarts=1)})) == "wwwf"


def test_a_model_trained_against_pgd() -> None:
    """One step and five leave far more than standard does: the first two are called weak."""
    strong = evaluate(healthy(), digits(), eps=WIDE, attacks="standard")
    assert tripped(strong) == {}
    for attacks in ("natural,fgsm", "pgd-5"):
        weak = evaluate(healthy(), digits(), eps=WIDE, attacks=attacks)
        assert weak.accuracy > strong.accuracy + 0.02
        assert set(NAMES) <= set(tripped(weak))
    assert "runs" in tripped(evaluate(healthy(), digits(), eps=WIDE, attacks="natural,fgsm"))
    assert set(tripped(evaluate(healthy(), digits(), eps=WIDE, attacks="pgd-50-10"))) == {"no black box", NAMES[-1]}
    assert tripped(evaluate(healthy(), digits(), eps=WIDE, attacks="natural")) == {}


def test_a_model_that_one_step_breaks() -> None:
    """No stronger attack could find more."""
    found = evaluate(nn.Flatten(), (0.9 * torch.eye(4), torch.arange(4)), eps=0.6, attacks="natural,fgsm")
    assert (found.accuracy, tripped(found)) == (0.0, {})


def test_a_proof_of_what_is_left() -> None:
    model, data = nn.Sequential(nn.Linear(4, 4, bias=False)), (0.9 * torch.eye(4), torch.arange(4))
    model.load_state_dict({"0.weight": torch.eye(4)})
    found = evaluate(model, data, eps=0.1, attacks="natural,fgsm,certified")
    assert (found.accuracy, tripped(found)) == (1.0, {})
    found = evaluate(model, data, eps=0.1, attacks="natural,fgsm")
    assert set(tripped(found)) == {"weak attacks", "few steps", "no black box"}


def test_a_curve() -> None:
    found = robust_curve(healthy(), digits().take(slice(60)), radii=[0, EPS], attacks="fgsm")
    assert {check.name for check in found.warnings} == set(NAMES)
    found = robust_curve(healthy(), digits().take(slice(60)), radii=[0, EPS], attacks="pgd-20-2,square-5")
    assert {check.name for check in found.warnings} == set()


@pytest.mark.parametrize(
    ("attacks", "expected"),
    [
        ("deepfool", {"weak attacks": "only deepfool"}),
        ("pgd-3", {"weak attacks": "add fab-t", "few steps": "only pgd-3: add pgd-20 or fab-t"}),
        ("deepfool,pgd-20", {"weak attacks": "only deepfool, pgd-20"}),
        ("fab-t-5", {"few steps": "only fab-t-5"}),
        ("pgd-20-2", {}),
        ("fab-t-20", {}),
    ],
)
def test_smallest_distances(attacks: str, expected: dict[str, str]) -> None:
    found = minimum_eps(healthy(), digits().take(slice(20)), max_eps=EPS, attacks=attacks)
    said = {check.name: check.message for check in found.warnings}
    assert set(said) == set(expected)
    assert all(text in said[name] for name, text in expected.items())
    assert all(message in str(found) for message in said.values())


def test_no_distance_is_smaller_than_0() -> None:
    samples = digits().take(slice(20))
    wrong = samples.floats(), (healthy()(samples.floats()).argmax(1) + 1) % 10
    found = minimum_eps(healthy(), wrong, max_eps=EPS, attacks="pgd-3")
    assert bool((found.distances == 0).all())
    assert not {"weak attacks", "few steps"} & {check.name for check in found.warnings}
