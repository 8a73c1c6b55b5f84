"""Read what `sihg evaluate` left in a run folder: accuracies under attacks, curves over the radius, doubts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from sihg.store.files import read_json
from sihg.store.run_folder import RunFolder

PROVEN = "proven"  # the rule of a row that is no attack, whose accuracy is a lower bound
ALL = "all"  # the row of what holds under all attacks of a record


@dataclass(frozen=True)
class Question:
    """What was evaluated, on what, within which ball; what the record does not say is None or empty."""

    checkpoint: str
    data: str
    split: str
    norm: str
    bounded: bool
    samples: int | None
    is_own: bool  # on the data and within the ball that the run was trained with
    older: str  # the checkpoint that was evaluated, where the run has a newer one of its kind

    @property
    def is_result(self) -> bool:
        """Whether it says how the run's model does as it is now, on its own test samples in its own ball."""
        return self.is_own and not self.older and self.split in ("test", "")


@dataclass(frozen=True)
class Evaluation(Question):
    """How a run's model did under one attack."""

    attack: str
    accuracy: float
    low: float | None  # the 95 % interval
    high: float | None
    eps: float | None
    rule: str  # which iterates count, or PROVEN
    passes: float | None  # a sample
    among: str  # of what holds under all attacks: which these are
    seconds: float | None = field(compare=False)
    source: Path = field(compare=False)  # the record


@dataclass(frozen=True)
class RadiusCurve(Question):
    """The accuracies of a run's model under an attack, at several radii."""

    attack: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    rule: str


def read_evaluations(
    folder: RunFolder, settings: Mapping[str, Any]
) -> tuple[tuple[Evaluation, ...], tuple[RadiusCurve, ...], tuple[str, ...]]:
    """All records: attacks, curves over the radius, and what the checks say against them, each once.

    What two records found is the same, whatever time it took.
    """
    is_older = _older(folder)
    attacks: dict[Evaluation, Evaluation] = {}
    curves: dict[RadiusCurve, None] = {}
    doubts: dict[str, None] = {}
    for source in sorted(folder.evaluation.glob("*.json")):
        record = read_json(source)
        weights = Path(str(record.get("weights") or "")).name
        older = weights if is_older(weights) else ""
        for one in _attacks(record, settings, older, source):
            attacks.setdefault(one, one)
        curves |= dict.fromkeys(_curves(record, settings, older))
        doubts |= dict.fromkeys(_doubts(record, source.stem))
    return tuple(attacks.values()), tuple(curves), tuple(doubts)


def counted(name: str) -> list[tuple[str, int]]:
    """A name in pieces, so that run-2 comes before run-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]


def finite(value: Any) -> float | None:
    """A finite number, or None."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _older(folder: RunFolder) -> Callable[[str], bool]:
    """Whether a name is that of a checkpoint, such as last-00000400, beside which there is a newer one of its kind."""
    kinds = {kind: [counted(path.name) for path in folder.checkpoints.glob(f"{kind}-*")] for kind in ("last", "best")}

    def is_older(name: str) -> bool:
        there = kinds.get(name.partition("-")[0])
        return bool(there) and counted(name) < max(there or [])

    return is_older


def _attacks(record: Mapping[str, Any], settings: Mapping[str, Any], older: str, source: Path) -> Iterator[Evaluation]:
    """The outcomes in a record; those without an accuracy are left out."""
    outcomes = _dicts(record.get("attacks"))
    named = [str(one.get("attack")) for one in outcomes if one.get("attack") != ALL and one.get("proof") is not True]
    for one in outcomes:
        attack, accuracy = str(one.get("attack", "unknown")), finite(one.get("accuracy"))
        if accuracy is not None:
            yield Evaluation(
                **_question(record, settings, older, natural=attack == "natural"),
                samples=_whole(one.get("samples")),
                attack=attack,
                accuracy=accuracy,
                low=finite(one.get("low")),
                high=finite(one.get("high")),
                eps=finite(record.get("eps")),
                rule=_rule(record, one),
                passes=finite(one.get("passes_per_sample")),
                among=", ".join(named) if attack == ALL else "",
                seconds=finite(one.get("seconds")),
                source=source,
            )


def _curves(record: Mapping[str, Any], settings: Mapping[str, Any], older: str) -> Iterator[RadiusCurve]:
    """The curves in a record; those with other than one number a radius are left out."""
    radii = _numbers(record.get("eps"))
    for one in _dicts(record.get("curves")):
        accuracy, low, high = (_numbers(one.get(key)) for key in ("accuracy", "low", "high"))
        if len(radii) > 1 and len(accuracy) == len(low) == len(high) == len(radii):
            yield RadiusCurve(
                **_question({**record, "eps": settings.get("eps")}, settings, older, natural=False),
                samples=_whole(record.get("samples")),
                attack=str(one.get("attack", "unknown")),
                eps=radii,
                accuracy=accuracy,
                low=low,
                high=high,
                rule=_rule(record, one),
            )


def _doubts(record: Mapping[str, Any], name: str) -> Iterator[str]:
    """What the checks of a record say against it, and remarks on its attacks."""
    for check in _dicts(record.get("checks")):
        if check.get("result") in ("error", "warning"):
            kind = "evaluation" if check["result"] == "warning" else "error in the evaluation"
            yield f"{kind} {name}: {check.get('message', '')}"
    for one in (*_dicts(record.get("attacks")), *_dicts(record.get("curves"))):
        if one.get("remark") and one.get("proof") is not True:  # a proof is told apart in the tables
            yield f"{one.get('attack', 'unknown')}: {one['remark']}"


def _question(record: Mapping[str, Any], settings: Mapping[str, Any], older: str, *, natural: bool) -> dict[str, Any]:
    return {
        **{key: str(record.get(key) or "") for key in ("checkpoint", "data", "split", "norm")},
        "bounded": record.get("bounds", True) is not None,
        "is_own": _is_own(record, settings, natural=natural),
        "older": older,
    }


def _is_own(record: Mapping[str, Any], settings: Mapping[str, Any], *, natural: bool) -> bool:
    """Whether an evaluation was on the run's own data and, unless there was no attack, within its own ball."""
    said = {**record, "bounds": "none"} if record.get("bounds", 0) is None else record
    keys = ("data",) if natural else ("data", "eps", "norm", "bounds")
    return all(said[key] == settings[key] for key in keys if key in said and key in settings)


def _rule(record: Mapping[str, Any], outcome: Mapping[str, Any]) -> str:
    return PROVEN if outcome.get("proof") is True else str(record.get("rule") or "")


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _numbers(value: Any) -> tuple[float, ...]:
    """Finite numbers; none at all where one of them is not."""
    found = [finite(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else [None]
    return tuple(one for one in found if one is not None) if None not in found else ()


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
