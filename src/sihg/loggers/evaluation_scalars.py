"""The numbers of an evaluation under the names that loggers give them."""

from sihg.store.schema import CurveRecord, EvaluationRecord, MinimumRecord


def evaluation_scalars(name: str, record: EvaluationRecord | CurveRecord) -> dict[str, float]:
    """Return the accuracies of a record with their 95 % intervals, as evaluation/NAME/ATTACK and so on.

    Args:
        name: The name of the record.
        record: The record: accuracies at one radius, at several, or smallest distances.
    """
    found: dict[str, float] = {}
    if isinstance(record, EvaluationRecord):
        for row in record.attacks:
            place = f"evaluation/{name}/{row.attack}"
            found |= {place: row.accuracy, f"{place}/low": row.low, f"{place}/high": row.high}
        return found
    for curve in record.curves:
        for eps, accuracy, low, high in zip(record.eps, curve.accuracy, curve.low, curve.high, strict=True):
            place = f"evaluation/{name}/{curve.attack}/eps-{eps:.6g}"
            found |= {place: accuracy, f"{place}/low": low, f"{place}/high": high}
    if isinstance(record, MinimumRecord):
        for smallest in record.minimum:
            place = f"evaluation/{name}/{smallest.attack}"
            sizes = {f"{place}/mean": smallest.mean, f"{place}/median": smallest.median}
            found |= {key: value for key, value in sizes.items() if value is not None}
    return found


def evaluation_notes(record: EvaluationRecord | CurveRecord) -> list[str]:
    """Return the warnings and errors that the checks of a record gave."""
    return [f"{check.name}: {check.message}" for check in record.checks if check.result in ("warning", "error")]
