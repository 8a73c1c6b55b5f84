"""Warnings of an evaluation that another one answers."""

from typing import Any

import pytest

from sihg.store.answers import AnyRecord, open_checks
from sihg.store.schema import CurveRecord, EvaluationRecord, convert_record
from tests.report.folders import HEADER, attack_row

ALL = {"samples": 397, "of": 397}
SOME = {"samples": 100, "of": 397}


def check(name: str, result: str = "warning") -> dict[str, str]:
    return {"name": name, "result": result, "message": "" if result == "fine" else f"{name} fires"}


def record(attacks: str, *checks: dict[str, str], **changes: Any) -> EvaluationRecord:
    rows = [attack_row(name, 0.5) for name in attacks.split(",")]
    content = {**HEADER, "sha256": "11", "eps": 0.25, "attacks": rows, "checks": checks} | changes
    return convert_record(content, EvaluationRecord, "a test", "repair it")


def names(of: AnyRecord, *others: AnyRecord) -> list[str]:
    return [found.name for found in open_checks(of, [of, *others])]


def test_without_another_record_every_warning_and_error_is_open() -> None:
    checks = [check("runs"), check("steps", "fine"), check("state", "error"), check("radius", "not run")]
    assert names(record("pgd-20", *checks)) == ["runs", "state"]


def test_a_fine_check_of_the_same_name_answers() -> None:
    weak = record("natural,pgd-20", check("other attacks"), check("runs"))
    assert names(weak, record("standard", check("other attacks", "fine"), check("runs", "not run"))) == ["runs"]
    assert names(weak, record("standard", check("runs"), check("steps", "fine"))) == ["other attacks", "runs"]


def test_nothing_answers_an_error() -> None:
    wrong = record("pgd-20", check("state", "error"))
    assert names(wrong, record("pgd-20", check("state", "fine"))) == ["state"]


@pytest.mark.parametrize(
    "changes",
    [
        {"sha256": "22"},
        {"checkpoint": "best"},
        {"eps": 0.1},
        {"norm": "l2"},
        {"bounds": None},
        {"rule": "last iterate"},
        {"precision": "bfloat16"},
        {"data": "mnist"},
        {"split": "train"},
        {"target": "class 3"},
        {"edited": True},
        SOME,
    ],
)
def test_another_question_is_no_answer(changes: dict[str, Any]) -> None:
    fine = check("other attacks", "fine")
    assert names(record("pgd-20", check("other attacks")), record("standard", fine, **changes)) == ["other attacks"]


def test_the_same_subset_or_all_samples_answer() -> None:
    weak, fine = record("pgd-20", check("other attacks"), **SOME), check("other attacks", "fine")
    assert names(weak, record("standard", fine, **SOME)) == []
    assert names(weak, record("standard", fine, **ALL)) == []
    assert names(weak, record("standard", fine, **SOME, seed=1)) == ["other attacks"]  # other samples


@pytest.mark.parametrize(
    ("first", "second", "is_open"),
    [
        ("standard", "natural,pgd-20,all", True),  # the figure of standard is still of a subset
        ("natural,pgd-20,all", "natural,pgd-20,pgd-50-10,all", False),
        ("natural,pgd-20,all", "standard", False),
        ("natural,standard,all", "standard", False),
    ],
)
def test_all_samples_is_answered_by_the_same_attacks(first: str, second: str, *, is_open: bool) -> None:
    part = record(first, check("all samples"), **SOME)
    assert names(part, record(second, check("all samples", "fine"), **ALL)) == (["all samples"] if is_open else [])


def test_a_curve_is_answered_by_a_curve() -> None:
    row: dict[str, Any] = {"attack": "pgd-20", "accuracy": [0.9, 0.5], "low": [0.8, 0.4], "high": [1.0, 0.6]}
    row |= {"passes": 0.0, "forwards": 0.0, "seconds": 0.0}

    def curve(result: str, **size: int) -> CurveRecord:
        content = {**HEADER, **size, "eps": [0.0, 0.25], "curves": [row], "checks": [check("all samples", result)]}
        return convert_record(content, CurveRecord, "a test", "repair it")

    assert names(curve("warning", **SOME), curve("fine", **ALL)) == []
    table = record("pgd-20", check("all samples", "fine"), sha256="")
    assert names(curve("warning", **SOME), table) == ["all samples"]
