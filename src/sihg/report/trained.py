"""Read the run folders that `sihg train ... --out DIR` leaves, finished or not: settings, epochs, evaluations."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.runs.config import from_toml
from sihg.runs.folder import RunFolder
from sihg.runs.tables import read_json_lines, read_table

Row = Mapping[str, float | None]
NUMBERS = ("epoch", "accuracy", "natural", "robust", "passes", "seconds")  # the columns of metrics.csv used here
PROVEN = "proven"  # the rule of a row that is no attack, whose accuracy is a lower bound


@dataclass(frozen=True)
class Evaluation:
    """How a run's model did under one attack; what the record does not say is None or empty."""

    attack: str
    accuracy: float
    low: float | None  # the 95 % interval
    high: float | None
    checkpoint: str
    data: str
    split: str
    eps: float | None
    norm: str
    bounded: bool
    rule: str  # which iterates count, or PROVEN
    samples: int | None
    passes: float | None  # a sample
    seconds: float | None
    is_own: bool  # on the data and within the ball that the run was trained with
    older: str  # the checkpoint that was evaluated, where the run has a newer one of its kind


@dataclass(frozen=True)
class TrainingRun:
    """All that a run folder says."""

    name: str
    config: str  # the file as it is
    settings: Mapping[str, Any]  # by dotted name
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    environment: Mapping[str, Any]
    evaluations: tuple[Evaluation, ...]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method.name", "unknown"))

    @property
    def epochs(self) -> int:
        """Epochs that are done."""
        return int(self.rows[-1]["epoch"] or 0) if self.rows else 0

    @property
    def asked(self) -> int | None:
        """Epochs that the run shall have."""
        asked = self.settings.get("epochs")
        return asked if isinstance(asked, int) else None

    @property
    def last(self) -> Row:
        """The row of the last evaluation on held-out samples; empty where there was none."""
        return next((row for row in reversed(self.rows) if row["robust"] is not None), {})

    @property
    def best(self) -> Row:
        """The row of the best robust accuracy on held-out samples, the first of equals; empty where there is none."""
        return max((row for row in self.rows if row["robust"] is not None), key=_robust, default={})


def run_folders(folder: Path) -> list[Path]:
    """The run folders there: the folder itself, or those right inside it, in the order people count; maybe none."""
    if (folder / "config.toml").is_file():
        return [folder]
    inside = [path.parent for path in folder.glob("*/config.toml") if path.is_file()]
    return sorted(inside, key=lambda path: _counted(path.name))


def called(folder: Path) -> str:
    """The name of a folder as text, `.` and `..` by what they are."""
    name = folder.name if folder.name not in ("", "..") else folder.resolve().name
    return name.encode(errors="backslashreplace").decode()


def read_run(path: Path) -> TrainingRun:
    """Read a run folder; only the config has to be there, and what is damaged is named."""
    folder = RunFolder.open(path)
    settings = from_toml(folder.config)
    return TrainingRun(
        name=called(path),
        config=folder.config.read_text(encoding="utf-8"),
        settings=_dotted(settings),
        rows=_rows(folder.metrics),
        warnings=_warnings(folder.log),
        environment=_json(folder.environment) if folder.environment.exists() else {},
        evaluations=_once(
            one
            for file in sorted(folder.evaluation.glob("*.json"))
            for one in _evaluations(file, settings, _older(folder))
        ),
    )


def _once(evaluations: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """Without those that another evaluation has found before them, whatever time it took."""
    found: dict[Evaluation, Evaluation] = {}
    for one in evaluations:
        found.setdefault(replace(one, seconds=None), one)
    return tuple(found.values())


def _counted(name: str) -> list[tuple[str, int]]:
    """A name in pieces, so that run-2 comes before run-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]


def _robust(row: Row) -> float:
    return row["robust"] or 0.0


def _dotted(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _dotted(value, f"{before}{key}.") if isinstance(value, Mapping) else {before + key: value}
    return flat


def _rows(source: Path) -> tuple[Row, ...]:
    rows = read_table(source) if source.exists() else []
    try:
        return tuple({key: _finite(float(row.get(key) or "nan")) for key in NUMBERS} for row in rows)
    except ValueError as error:
        raise InputError(f"{source} has a cell that is no number ({error}): repair that cell") from error


def _warnings(source: Path) -> tuple[str, ...]:
    entries = read_json_lines(source) if source.exists() else []
    return tuple(
        str(entry.get("text", "")) for entry in entries if isinstance(entry, dict) and entry.get("event") == "warning"
    )


def _json(source: Path) -> dict[str, Any]:
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {source} ({why}): repair it, or take it away") from error
    if not isinstance(content, dict):
        raise InputError(f"{source} holds no JSON object: repair it, or take it away")
    return content


def _older(folder: RunFolder) -> Callable[[str], bool]:
    """Whether a name is that of a checkpoint, such as last-00000400, beside which there is a newer one of its kind."""
    kinds = {kind: [_counted(path.name) for path in folder.checkpoints.glob(f"{kind}-*")] for kind in ("last", "best")}

    def is_older(name: str) -> bool:
        there = kinds.get(name.partition("-")[0])
        return bool(there) and _counted(name) < max(there or [])

    return is_older


def _evaluations(source: Path, settings: Mapping[str, Any], is_older: Callable[[str], bool]) -> list[Evaluation]:
    """The outcomes in a record of `sihg evaluate`; those without an accuracy are left out."""
    record = _json(source)
    weights = Path(str(record.get("weights") or "")).name
    attacks = record.get("attacks")
    outcomes = [one for one in attacks if isinstance(one, dict)] if isinstance(attacks, list) else []
    return [
        Evaluation(
            attack=str(one.get("attack", "unknown")),
            accuracy=accuracy,
            low=_finite(one.get("low")),
            high=_finite(one.get("high")),
            **{key: str(record.get(key) or "") for key in ("checkpoint", "data", "split", "norm")},
            rule=PROVEN if one.get("proof") is True else str(record.get("rule") or ""),
            eps=_finite(record.get("eps")),
            bounded=record.get("bounds", True) is not None,
            samples=one["samples"] if isinstance(one.get("samples"), int) else None,
            passes=_finite(one.get("passes_per_sample")),
            seconds=_finite(one.get("seconds")),
            is_own=_is_own(record, settings, natural=one.get("attack") == "natural"),
            older=weights if is_older(weights) else "",
        )
        for one in outcomes
        if (accuracy := _finite(one.get("accuracy"))) is not None and one.get("attack") != "all"
    ]


def _is_own(record: Mapping[str, Any], settings: Mapping[str, Any], *, natural: bool) -> bool:
    """Whether an evaluation was on the run's own data and, unless there was no attack, within its own ball."""
    said = {**record, "bounds": "none"} if record.get("bounds", 0) is None else record
    keys = ("data",) if natural else ("data", "eps", "norm", "bounds")
    return all(said[key] == settings[key] for key in keys if key in said and key in settings)


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
