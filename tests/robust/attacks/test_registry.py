"""Attacks by name."""

from typing import Any

import pytest
from torch import nn

from sihg.cli.evaluate import EPILOG
from sihg.errors import InputError, UnknownNameError
from sihg.robust.attacks import APGD, FAB, FGSM, PGD, Natural, Noise, Square, Transfer
from sihg.robust.attacks.registry import FORMS, build_attack, build_plan
from sihg.robust.threat import Ball


def test_names_of_attacks() -> None:
    ball = Ball(0.25, "l2", None)
    assert isinstance(build_attack("natural", ball), Natural)
    common: Any = {"eps": 0.25, "norm": "l2", "bounds": None}
    for name, last, same in (
        ("fgsm", True, FGSM(**common, last_iterate=True)),
        ("pgd-20", False, PGD(**common, steps=20)),
        ("pgd-50-10", True, PGD(**common, steps=50, restarts=10, last_iterate=True)),
        ("apgd-ce", False, APGD(**common)),
        ("apgd-t-50-2", False, APGD(**common, loss="dlr-t", steps=50, restarts=2)),
        ("fab-t-10", True, FAB(**common, steps=10)),
        ("square-200-3", False, Square(**common, queries=200, restarts=3)),
        ("noise-4", False, Noise(**common, draws=4)),
    ):
        assert repr(build_attack(name, ball, last_iterate=last)) == repr(same)


@pytest.mark.parametrize("name", ["pgd", "pgd20", "pgd-", "PGD-20", "pgd-20-1-1", "natural ", "apgd", "noise-1-1", ""])
def test_unknown_attacks_list_the_forms(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown attack .*: choose from natural, fgsm, pgd-T\[-R\], "):
        build_attack(name, Ball(0.1))


def test_attacks_of_no_steps_are_refused() -> None:
    with pytest.raises(InputError, match="steps must be a whole number >= 1, got 0"):
        build_attack("pgd-0", Ball(0.1))
    with pytest.raises(InputError, match="restarts must be a whole number >= 1, got 0"):
        build_attack("pgd-5-0", Ball(0.1))


def test_standard_is_a_cascade_with_the_usual_budgets() -> None:
    parts = build_plan("standard", Ball(0.1))
    common: Any = {"eps": 0.1}
    expected = (
        Natural(),
        APGD(**common, steps=100),
        APGD(**common, loss="dlr-t", steps=100, targets=9),
        FAB(**common, steps=100, targets=9),
        Square(**common, queries=5000, p_init=0.8),
    )
    assert list(parts) == ["natural", "apgd-ce", "apgd-t", "fab-t", "square"]
    assert [repr(one) for one in parts.values()] == [repr(one) for one in expected]


def test_transfer_asks_for_the_other_model() -> None:
    asked, model = [], nn.Identity()

    def source(run: str) -> nn.Module:
        asked.append(run)
        return model

    found = build_attack("transfer:runs/a:b", Ball(0.1), source=source)
    assert isinstance(found, Transfer)
    assert (asked, found.source) == (["runs/a:b"], model)
    with pytest.raises(InputError, match=r"transfer:runs/a is for evaluations of runs: from Python give Transfer\("):
        build_attack("transfer:runs/a", Ball(0.1))


def test_the_help_tells_of_every_attack() -> None:
    assert [form for form in FORMS if f"\n  {form} " not in EPILOG] == []


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
        ("fab", "fab-t"),
        ("deepfool", None),
    ],
)
def test_what_may_have_been_meant(name: str, meant: str | None) -> None:
    with pytest.raises(UnknownNameError) as caught:
        build_attack(name, Ball(0.1))
    assert (f"(did you mean {meant!r}?)" in str(caught.value)) == (meant is not None)
    assert ("did you mean" in str(caught.value)) == (meant is not None)
