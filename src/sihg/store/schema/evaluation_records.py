"""An evaluation: evaluation/NAME.json and the header of gallery.npz."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from sihg.store.schema.record import Record, convert_record, read_json
from sihg.store.schema.run_records import Environment

Bounds = tuple[float, float]


class Check(msgspec.Struct, frozen=True):
    """A check of an evaluation; docs/checks.md says when it fires and what to do."""

    name: str
    result: Literal["fine", "warning", "error", "not run"]
    message: str = ""

    @property
    def link(self) -> str:
        """Where the documents explain the check."""
        return f"docs/checks.md#{self.name.partition(':')[0].replace(' ', '-')}"


def count_results(checks: Sequence[Check]) -> str:
    """Return how many checks had which result: "13 fine, 2 warnings, 0 errors, 1 not run"."""
    counts = Counter(check.result for check in checks)
    kinds = [f"{counts[kind]} {kind}{'' if counts[kind] == 1 else 's'}" for kind in ("warning", "error")]
    return f"{counts['fine']} fine, {', '.join(kinds)}, {counts['not run']} not run"


def explain_not_run(checks: Sequence[Check]) -> list[str]:
    """Return which checks were not run and why, one line per reason: "steps, runs: eps is 0"."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.result == "not run":
            reasons.setdefault(check.message, []).append(check.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


class AttackRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one attack; `low` and `high` are the 95 % interval of the accuracy."""

    attack: str
    accuracy: float
    low: float
    high: float
    samples: int
    broken: int
    passes: float
    forwards: float
    seconds: float
    passes_per_sample: float
    forwards_per_sample: float
    proof: bool = False  # not an attack but a proof: the accuracy is a lower bound
    remark: str = ""
    attacked: int | None = None  # samples, where not all were
    stages: tuple["AttackRow", ...] = ()
    votes: int = 1  # draws that classified each point; with several, it is broken if at least half are wrong
    mean: float | None = None  # with several votes: the share of draws that are right
    worst: float | None = None  # with several votes: the share of samples for which all draws are right


class EvaluationHeader(Record, frozen=True, kw_only=True):
    """Which weights were attacked on which samples, and how."""

    weights: str
    sha256: str
    checkpoint: str
    data: str
    contents: str = ""  # SHA-256 of the samples
    split: str
    samples: int
    of: int
    seed: int
    norm: str
    bounds: Bounds | None
    device: str
    rule: str  # which iterates count
    target: str = ""  # of targeted attacks: which class breaks a sample, such as "class 3"
    precision: str = "float32"  # number format of the searches; verdicts are always float32
    bpda: dict[str, str] = msgspec.field(default_factory=dict)  # by module: what gave its gradient
    notes: tuple[str, ...] = ()  # what was done to load the model, such as a prefix removed from names
    eot: int = 1  # draws over which gradients are averaged
    votes: int = 1  # draws that classified each point
    files: dict[str, str] = msgspec.field(default_factory=dict)  # SHA-256 of the files beside the record
    edited: bool = False  # on purpose, and accepted by `sihg check`
    own_seal_with_seconds: str = ""  # by the user's key: a record that has it is not made again


def method_notes(header: EvaluationHeader) -> list[str]:
    """Return how gradients and verdicts were made, where that is not the usual way."""
    notes = [f"gradient of {module}: {stand_in}" for module, stand_in in header.bpda.items()]
    notes += [f"gradients are means over {header.eot} draws"] if header.eot > 1 else []
    return notes + ([f"broken if at least half of {header.votes} draws are wrong"] if header.votes > 1 else [])


class EvaluationRecord(EvaluationHeader, frozen=True, kw_only=True):
    """Accuracy under attacks at one radius."""

    eps: float
    attacks: tuple[AttackRow, ...]
    checks: tuple[Check, ...] = ()
    checks_seconds: float = 0.0
    environment: Environment = Environment()


class CurveRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Accuracy under one attack at each radius."""

    attack: str
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    passes: float
    forwards: float
    seconds: float
    proof: bool = False
    remark: str = ""
    votes: int = 1
    mean: tuple[float, ...] = ()  # with several votes, at each radius, as is worst
    worst: tuple[float, ...] = ()
    stages: tuple[AttackRow, ...] = ()  # of each radius


def vote_note(row: CurveRow) -> str:
    """Return the accuracies that the votes on a random model give besides that of the row; empty with one vote."""
    if row.votes == 1:
        return ""
    mean, worst = (", ".join(f"{100 * value:.2f}" for value in values) for values in (row.mean, row.worst))
    return f"{row.attack}: at these radii {mean} % of draws are right (mean), for {worst} % of samples all (worst)"


class CurveRecord(EvaluationHeader, frozen=True, kw_only=True):
    """Accuracy under attacks at several radii."""

    eps: tuple[float, ...]
    curves: tuple[CurveRow, ...]
    checks: tuple[Check, ...] = ()
    environment: Environment = Environment()


class MinimumRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The smallest eps found per sample, over all samples; None: larger than what was searched."""

    attack: str
    samples: int
    found: int  # samples with a misclassified point within max_eps
    mean: float | None
    lower_quartile: float | None
    median: float | None
    upper_quartile: float | None
    passes: float
    forwards: float
    seconds: float


class MinimumRecord(CurveRecord, frozen=True, kw_only=True):
    """The smallest eps at which samples fall, and the accuracy at the radii `eps` that follows from it."""

    max_eps: float
    minimum: tuple[MinimumRow, ...]


class GalleryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Of which weights and which attack the samples in gallery.npz are."""

    sha256: str
    checkpoint: str
    data: str
    split: str
    eps: float
    norm: str
    bounds: Bounds | None
    rule: str
    classes: tuple[str, ...]
    attack: str
    accuracy: float


def read_evaluation(path: Path, remedy: str = "evaluate again") -> EvaluationRecord | CurveRecord:
    """Read evaluation/NAME.json: a table, a curve, or smallest distances with their curve."""
    content = read_json(path, remedy)
    if "minimum" in content:
        return convert_record(content, MinimumRecord, path, remedy)
    if "curves" in content:
        return convert_record(content, CurveRecord, path, remedy)
    return convert_record(content, EvaluationRecord, path, remedy)
