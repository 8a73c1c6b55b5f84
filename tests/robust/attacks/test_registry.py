"""Attacks by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sihg.cli.evaluate import EPILOG
from sihg.robust.attacks import (
    APGD,
    CW,
    FAB,
    FGSM,
    MIFGSM,
    PGD,
    Attack,
    Certified,
    DeepFool,
    FunctionAttack,
    Natural,
    Noise,
    Square,
    Transfer,
)
from sihg.robust.attacks.certified import Proof
from sihg.robust.attacks.registry import ATTACK_FORMS, build_attack, build_plan, describe_plans, plan_attacks
from sihg.robust.evaluation import evaluate
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.methods.nets import net, samples


def test_traits() -> None:
    """What the checks of an evaluation go by: gradients, their steps, restarts, margins, and black boxes."""
    ball = Ball(0.25)
    for name, gradients, steps, restarted, margin, black_box in (
        ("natural", False, None, False, False, False),
        ("certified", False, None, False, False, False),
        ("fgsm", True, 1, False, False, False),
        ("pgd-20", True, 20, False, False, False),
        ("pgd-50-10", True, 50, True, False, False),
        ("apgd-ce", True, 100, False, False, False),
        ("apgd-ce-50-2", True, 50, True, False, False),
        ("apgd-dlr", True, 100, False, True, False),
        ("apgd-t", True, 100, False, True, False),
        ("fab-t-30", True, 30, False, True, False),
        ("mi-fgsm-15-2", True, 15, True, False, False),
        ("deepfool-9", True, 9, False, True, False),
        ("square", False, None, False, True, True),
        ("square-10-2", False, None, True, True, True),
        ("noise", False, None, False, False, False),
        ("transfer:other", False, None, False, False, True),
    ):
        attack = build_attack(name, ball, source=lambda _: net("plain"))
        traits = attack.uses_gradients, attack.steps_per_run, attack.is_restarted, attack.uses_margin
        assert (*traits, attack.is_black_box) == (gradients, steps, restarted, margin, black_box), name
    unknown = FunctionAttack(eps=0.25, function=lambda _model, x, _y: x)
    assert (unknown.uses_gradients, unknown.steps_per_run, unknown.is_restarted) == (None, None, False)


def test_names_of_attacks() -> None:
    ball = Ball(0.25, "l2", None)
    assert isinstance(build_attack("natural", ball), Natural)
    common: Any = {"eps": 0.25, "norm": "l2", "bounds": None}
    for name, last, same in (
        ("fgsm", True, FGSM(**common, last_iterate=True)),
        ("pgd-20", False, PGD(**common, steps=20)),
        ("pgd-50-10", True, PGD(**common, steps=50, restarts=10, last_iterate=True)),
        ("apgd-ce", False, APGD(**common)),
        ("apgd-dlr-50", False, APGD(**common, loss="dlr", steps=50)),
        ("apgd-t-50-2", False, APGD(**common, loss="dlr-t", steps=50, restarts=2)),
        ("fab-t-10", True, FAB(**common, steps=10)),
        ("fab-10-2", True, FAB(**common, steps=10, restarts=2, targeted=False)),
        ("square-200-3", False, Square(**common, queries=200, restarts=3)),
        ("noise-4", False, Noise(**common, draws=4)),
        ("mi-fgsm-20-3", True, MIFGSM(**common, steps=20, restarts=3, last_iterate=True)),
        ("deepfool-10", True, DeepFool(**common, steps=10)),
        ("cw-50", False, CW(**common, steps=50)),
    ):
        assert repr(build_attack(name, ball, last_iterate=last)) == repr(same)


@pytest.mark.parametrize(
    "name", ["pgd", "pgd20", "pgd-", "PGD-20", "pgd-20-1-1", "natural ", "natural-2", "apgd", "noise-1-1", "", "fgsm-1"]
)
def test_unknown_attacks_list_the_forms(name: str) -> None:
    with refused("unknown-attack", name=name, choices=tuple(ATTACK_FORMS)):
        build_attack(name, Ball(0.1))


def test_attacks_of_no_steps_are_refused() -> None:
    with refused("count-range", setting="steps", value=0):
        build_attack("pgd-0", Ball(0.1))
    with refused("count-range", setting="restarts", value=0):
        build_attack("pgd-5-0", Ball(0.1))


def test_standard_is_a_cascade_with_the_usual_budgets() -> None:
    parts = build_plan("standard", Ball(0.1))
    common: Any = {"eps": 0.1}
    expected = (
        Natural(),
        Proof(**common),
        APGD(**common, steps=100),
        APGD(**common, loss="dlr-t", steps=100, targets=9),
        FAB(**common, steps=100, targets=9),
        Square(**common, queries=5000, p_init=0.8),
    )
    assert list(parts) == ["natural", "certified", "apgd-ce", "apgd-t", "fab-t", "square"]
    assert list(map(repr, parts.values())) == list(map(repr, expected))


def test_standard_in_l1_has_autoattacks_restarts_and_targets() -> None:
    parts = build_plan("standard", Ball(12.0, "L1"))
    common: Any = {"eps": 12.0, "norm": "l1"}
    expected = (
        Natural(),
        APGD(**common, restarts=5),
        APGD(**common, loss="dlr-t", targets=5),
        FAB(**common, targets=9),
        Square(**common, queries=5000),
    )
    assert list(map(repr, parts.values())) == list(map(repr, expected))
    assert build_attack("apgd-ce-100-1", Ball(12.0, "l1")).restarts == 1  # type: ignore[attr-defined]


def test_transfer_asks_for_the_other_model() -> None:
    asked, model = [], nn.Identity()

    def source(run: str) -> nn.Module:
        asked.append(run)
        return model

    found = build_attack("transfer:runs/a:b", Ball(0.1), source=source)
    assert isinstance(found, Transfer)
    assert (asked, found.source) == (["runs/a:b"], model)
    with refused("transfer-source"):
        build_attack("transfer:runs/a", Ball(0.1))


OWN = """
import torch
from dataclasses import dataclass
from sihg.robust.attacks import Attack

@dataclass(frozen=True, kw_only=True, eq=False)
class Darker(Attack):
    share: float = 1.0

    def search(self, search, seed):
        rows = search.unbroken()
        point = rows.x + self.share * rows.feasible.low
        search.record(rows, point, search.compute_logits(rows, point))

class Stranger:
    def __init__(self, eps, norm, bounds):
        pass

def darker(model, x, y):
    assert not model.training
    return (x - 0.1).clamp(min=0)

def too_dark(model, x, y):
    return (x - 0.2).clamp(min=0)

def broken(model, x, y):
    return x / (1 // 0)

def shapeless(model, x, y):
    return x[:1]
"""


@pytest.mark.parametrize("name", ["Darker", "darker"])
def test_a_changed_file_makes_another_attack(name: str, tmp_path: Path) -> None:
    """A resumed evaluation must not mix verdicts of two versions of a user's class or function."""
    file = tmp_path / "own.py"
    described = []
    for source in (OWN, OWN, OWN.replace("0.2", "0.3")):
        file.write_text(source, encoding="utf-8")
        described.append(describe_plans(plan_attacks([f"{file}:{name}"], Ball(0.1))))
    assert described[0] == described[1] != described[2]


def test_an_attack_of_a_users_own_is_a_class_or_a_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    model, (x, y) = net("smooth"), samples(5)
    results = []
    for name in ("Darker", "darker"):
        attack = build_attack(f"{tmp_path / 'mine.py'}:{name}", Ball(0.1))
        assert (attack.eps, attack.norm) == (0.1, "linf")
        results.append(attack.run(model, x, y))
    torch.testing.assert_close(results[0].x_adv, (x - 0.1).clamp(min=0))
    torch.testing.assert_close(results[1].x_adv, results[0].x_adv)
    assert [(found.passes, found.forwards) for found in results] == [(0, 5), (0, 5)]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Stranger", "not-an-attack"),
        ("nothing", "user-code-import"),
        ("too_dark", "points-outside-ball"),
        ("broken", "user-code-failed"),
        ("shapeless", "points-shape"),
    ],
)
def test_an_attack_of_a_users_own_is_checked(name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with refused(code):
        build_attack(f"{tmp_path / 'mine.py'}:{name}", Ball(0.1)).run(net("smooth"), *samples(5))


def test_eps_may_be_text() -> None:
    makers: list[Callable[..., Attack]] = [
        Natural,
        PGD,
        FGSM,
        MIFGSM,
        APGD,
        FAB,
        DeepFool,
        CW,
        Square,
        Noise,
        Certified,
    ]
    makers += [partial(Transfer, source=nn.Identity()), partial(FunctionAttack, function=lambda _model, x, _y: x)]
    for make in makers:
        attack = make(eps="8/255")
        assert (attack.eps, attack.ball.eps) == (8 / 255, 8 / 255)
    assert FGSM(eps="8/255").step_size == 8 / 255


def test_the_help_lists_every_attack() -> None:
    assert [form for form in ATTACK_FORMS if f"\n  {form} " not in EPILOG] == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pgd", "pgd-20"),
        ("pgd20", "pgd-20"),
        ("pdg-20", "pgd-20"),
        ("PGD-20", "pgd-20"),
        ("autoattack", "standard"),
        ("aa", "standard"),
        ("standart", "standard"),
        ("apgd", "apgd-ce"),
        ("fabt", "fab-t"),
        ("mifgsm", "mi-fgsm"),
        ("deepfol", "deepfool"),
        ("boundary", None),
    ],
)
def test_what_may_have_been_meant(name: str, meant: str | None) -> None:
    with refused("unknown-attack") as caught:
        build_attack(name, Ball(0.1))
    assert (f"(did you mean {meant!r}?)" in str(caught.value)) == (meant is not None)
    assert ("did you mean" in str(caught.value)) == (meant is not None)


def test_a_class_that_is_in_no_file_cannot_be_resumed(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec("from sihg.robust.attacks import PGD\n\n\nclass Mine(PGD):\n    pass\n", names)
    x, y = torch.rand(4, 3), torch.arange(4) % 2
    with refused("resume-function", name="Mine"):
        evaluate(torch.nn.Linear(3, 2), (x, y), eps=0.1, attacks={"mine": names["Mine"](eps=0.1)}, resume=tmp_path)
