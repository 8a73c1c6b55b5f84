"""Tables of several models: which samples each row is on."""

from typing import Any

import pytest

from sihg.cli.evaluation_tables import curves_table, models_table
from sihg.store.schema import CurveRecord, EvaluationRecord, convert_record
from tests.report.folders import HEADER, attack_row


def table(samples: int) -> EvaluationRecord:
    rows = [attack_row(attack, 0.5, samples) for attack in ("natural", "pgd-20", "all")]
    content = {**HEADER, "samples": samples, "eps": 0.25, "attacks": rows}
    return convert_record(content, EvaluationRecord, "a test", "repair it")


def curve(samples: int) -> CurveRecord:
    row: dict[str, Any] = {"attack": "pgd-20", "accuracy": [0.9, 0.5], "low": [0.8, 0.4], "high": [1.0, 0.6]}
    row |= {"passes": 0.0, "forwards": 0.0, "seconds": 0.0}
    content = {**HEADER, "samples": samples, "eps": [0.0, 0.25], "curves": [row]}
    return convert_record(content, CurveRecord, "a test", "repair it")


@pytest.mark.parametrize("is_curve", [False, True])
def test_models_on_other_numbers_of_samples_say_so(*, is_curve: bool) -> None:
    def made(*samples: int) -> str:
        names = list("ab")
        if is_curve:
            return curves_table([(name, curve(n)) for name, n in zip(names, samples, strict=True)])
        return models_table([(name, table(n)) for name, n in zip(names, samples, strict=True)])

    same, other = made(397, 397), made(397, 100)
    assert same.startswith("397 samples of digits (test)")
    assert other.startswith("accuracies")
    for n in (397, 100):
        assert f"({n} samples of digits" in other
