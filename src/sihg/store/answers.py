"""Which warnings of an evaluation another evaluation of the same weights has answered."""

from collections.abc import Iterable

from sihg.store.schema import Check, CurveRecord, EvaluationRecord

AnyRecord = EvaluationRecord | CurveRecord
STRONGEST = "standard"  # an answer to what is said about any other attack
ABOUT_ATTACKS = ("all samples", "below natural")  # checks of the very attacks that were run, not of what is missing


def open_checks(record: AnyRecord, others: Iterable[AnyRecord]) -> list[Check]:
    """Return the errors of a record, and its warnings that no other record answers.

    A record answers a warning if its check of the same name is fine, and it has the same weights, the same attacker and
    the same samples, or all of the split. What is said about the attacks that were run is answered only by a record
    with the same attacks, or with `standard`. Nothing answers an error: the accuracies of that record are wrong.

    Args:
        record: The record with the checks.
        others: Further records; `record` itself may be among them.
    """
    answers = [other for other in others if not other.edited and _is_wider(other, record)]
    return [check for check in record.checks if check.result == "error" or _is_open(check, record, answers)]


def _is_open(check: Check, record: AnyRecord, answers: Iterable[AnyRecord]) -> bool:
    if check.name in ABOUT_ATTACKS:
        answers = [other for other in answers if {STRONGEST} <= _attacks(other) or _attacks(record) <= _attacks(other)]
    fine = {found.name for other in answers for found in other.checks if found.result == "fine"}
    return check.result == "warning" and check.name not in fine


def _is_wider(other: AnyRecord, record: AnyRecord) -> bool:
    """Whether a record is of the same weights, attacker and samples as another, or of all samples."""
    return _question(other) == _question(record) and (other.samples == other.of or _samples(other) == _samples(record))


def _question(record: AnyRecord) -> tuple[object, ...]:
    """Return which weights, which attacker, and which split a record is about."""
    attacker = (record.norm, record.eps, record.bounds, record.target, record.rule, record.precision)
    return record.sha256, record.checkpoint, *attacker, record.data, record.split, record.of


def _samples(record: AnyRecord) -> tuple[object, ...]:
    return record.samples, record.seed, record.contents


def _attacks(record: AnyRecord) -> set[str]:
    rows = record.curves if isinstance(record, CurveRecord) else record.attacks
    return {row.attack for row in rows} - {"all"}
