"""Read the records of evaluations: accuracy under attacks, curves over the radius, predictions, galleries."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.parse import Value
from sihg.store.answers import AnyRecord, open_checks
from sihg.store.arrays import read_arrays
from sihg.store.files import list_names, sha256_of_file
from sihg.store.schema import (
    NOT_SET,
    SEALED_FORMAT,
    AttackRow,
    CurveRecord,
    CurveRow,
    EvaluationHeader,
    EvaluationRecord,
    GalleryHeader,
    MinimumRecord,
    explain_not_run,
    method_notes,
    read_evaluation,
    vote_note,
)

PROVEN = "proven"  # the rule of a row that is a proof: its accuracy is a lower bound
ALL = "all"  # the row of samples that no attack of a record breaks
GALLERY_ARRAYS = ("label", "before", "after", "clean", "adversarial")
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]


class SampleSet(NamedTuple):
    """Which samples an evaluation is on: how many of a split, drawn with which seed."""

    data: str
    split: str
    of: int
    samples: int
    seed: int  # 0 for all samples
    contents: str  # their sum, only of samples in memory: these may all have one name

    @property
    def population(self) -> object:
        """What the samples were drawn from, in which each has one index."""
        return (self.data, self.split, self.of) if self.split else self


@dataclass(frozen=True)
class Context:
    """Which weights were evaluated, on which samples, within which ball."""

    checkpoint: str
    data: str
    split: str
    norm: str
    bounded: bool
    samples: int
    is_own: bool  # the data and the ball are those of the run's training
    older: str  # the evaluated checkpoint, if the run has a newer one of its kind
    sample_set: SampleSet

    @property
    def is_result(self) -> bool:
        """Whether the newest weights were evaluated on the run's own test samples within its own ball."""
        return self.is_own and not self.older and self.split in ("test", "")


@dataclass(frozen=True)
class Evaluation(Context):
    """Accuracy under one attack. Two are equal if they found the same, however long it took."""

    attack: str
    accuracy: float
    low: float  # the 95 % interval
    high: float
    eps: float
    rule: str  # which iterates count, or PROVEN
    how: str  # gradients and verdicts, where they were not made in the usual way
    passes: float  # per sample
    among: str  # the attacks that the row ALL is about
    target: str  # of targeted attacks, whose accuracy is the share that is not the target
    seconds: float = field(compare=False)
    source: Path = field(compare=False)  # the record


@dataclass(frozen=True)
class RadiusCurve(Context):
    """Accuracy under one attack at several radii."""

    attack: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    rule: str


class Remark(NamedTuple):
    """A warning about a run or an evaluation; from an evaluation, with the names of the check and of the record."""

    text: str
    check: str = ""
    record: str = ""


class Evaluations(NamedTuple):
    """All that the records in a folder say, each thing once."""

    attacks: tuple[Evaluation, ...]
    curves: tuple[RadiusCurve, ...]
    remarks: tuple[Remark, ...]
    not_run: tuple[Remark, ...]  # checks, and why


def read_records(folder: Path) -> dict[Path, AnyRecord]:
    """Read every record in a folder, which may be missing."""
    names = [name for name in list_names(folder) if name.endswith(".json") and not name.startswith(".")]
    return _read_all([folder / name for name in names])


def read_all_records(folder: Path) -> dict[Path, AnyRecord]:
    """Read the records in FOLDER/evaluation and those directly in the folder."""
    return read_records(folder / "evaluation") | _read_all(own_records(folder))


def _read_all(paths: Sequence[Path]) -> dict[Path, AnyRecord]:
    return {path: read_evaluation(path, "evaluate again, or remove the file") for path in paths}


def own_records(folder: Path) -> list[Path]:
    """List the records that `sihg evaluate --out` wrote directly into a folder: .json files with their .npz."""
    names = list_names(folder) if folder.is_dir() else []
    paths = [folder / name for name in names if name.endswith(".json") and not name.startswith(".")]
    return [path for path in paths if path.with_suffix(".npz").is_file()]


def collect_evaluations(
    records: Mapping[Path, AnyRecord],
    settings: Mapping[str, Value],
    checkpoints: Mapping[str, str | None] = MappingProxyType({}),
) -> Evaluations:
    """Collect what records say, each thing once, without warnings that another record answers.

    Args:
        records: The records by file.
        settings: The settings of the run, by dotted name; empty if there is no run.
        checkpoints: The SHA-256 of the weights of the run's checkpoints, by name; None where it is not known.
    Raises:
        InputError: A record is of other weights than the checkpoint that it names, or two are of other samples.
    """
    check_same_samples(records)
    attacks: dict[Evaluation, Evaluation] = {}
    curves: dict[RadiusCurve, None] = {}
    remarks: dict[Remark, None] = {}
    for source, record in records.items():
        weights = Path(record.weights).name
        if checkpoints.get(weights) not in (None, record.sha256):
            raise InputError("record-other-weights", path=source, weights=weights)
        if record.edited:
            remarks[Remark(f"{source.name} was edited on purpose after it was written", record=source.stem)] = None
        older = weights if _has_newer(weights, checkpoints) else ""
        rows: Sequence[AttackRow | CurveRow]
        if isinstance(record, EvaluationRecord):
            rows = record.attacks
            for evaluation in _evaluations(record, settings, older, source):
                attacks.setdefault(evaluation, evaluation)
        else:
            rows = record.curves
            curves |= dict.fromkeys(_curves(record, settings, older))
        for check in open_checks(record, records.values()):
            kind = "" if check.result == "warning" else "error: "
            remarks[Remark(f"{kind}{check.message}", check.name, source.stem)] = None
        remarks |= {Remark(note, record=source.stem): None for note in record.notes}
        remarks |= {Remark(text, record=source.stem): None for row in rows for text in _attack_remarks(row)}
        remarks |= {
            Remark(vote_note(row), record=source.stem): None
            for row in rows
            if isinstance(row, CurveRow) and row.votes > 1
        }
    not_run = [
        Remark(text, record=source.stem)
        for source, record in records.items()
        for text in explain_not_run(record.checks)
    ]
    return Evaluations(tuple(attacks.values()), tuple(curves), tuple(remarks), tuple(not_run))


def _attack_remarks(row: AttackRow | CurveRow) -> list[str]:
    """Return what is remarked on an attack and its stages; remarks on proofs are no warnings."""
    stages = row.stages if isinstance(row, AttackRow) else ()
    found = [f"{row.attack}: {stage.attack}: {stage.remark}" for stage in stages if stage.remark and not stage.proof]
    return found if stages else [f"{row.attack}: {row.remark}"] if row.remark and not row.proof else []


def natural_order(name: str) -> list[tuple[str, int]]:
    """Return a sort key by which run-2 comes before run-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]


def _has_newer(name: str, checkpoints: Collection[str]) -> bool:
    """Whether a checkpoint such as last-00000400 has a newer one of its kind."""
    kind = name.partition("-")[0]
    same_kind = [natural_order(other) for other in checkpoints if other.startswith(f"{kind}-")]
    return bool(same_kind) and natural_order(name) < max(same_kind)


def _evaluations(
    record: EvaluationRecord, settings: Mapping[str, Value], older: str, source: Path
) -> Iterator[Evaluation]:
    attacks = [row.attack for row in record.attacks if row.attack != ALL and not row.proof]
    for row in record.attacks:
        same = ("data",) if row.attack == "natural" else ("data", "norm", "bounds", "eps")
        yield Evaluation(
            *_context(record, settings, older, row.samples, same),
            attack=row.attack,
            accuracy=row.accuracy,
            low=row.low,
            high=row.high,
            eps=record.eps,
            rule=PROVEN if row.proof else record.rule,
            how="; ".join([*method_notes(record), *_vote_notes(row)]),
            passes=row.passes_per_sample,
            among=", ".join(attacks) if row.attack == ALL else "",
            target=record.target,
            seconds=row.seconds,
            source=source,
        )


def _vote_notes(row: AttackRow) -> list[str]:
    if row.mean is None or row.worst is None:
        return []
    return [f"mean {100 * row.mean:.2f} %", f"worst {100 * row.worst:.2f} %"]


def _curves(record: CurveRecord, settings: Mapping[str, Value], older: str) -> Iterator[RadiusCurve]:
    is_minimum = isinstance(record, MinimumRecord)  # its last row is that of all attacks
    for row in record.curves[-1:] if is_minimum else record.curves:
        if len(record.eps) > 1 and len(row.accuracy) == len(row.low) == len(row.high) == len(record.eps):
            yield RadiusCurve(
                *_context(record, settings, older, record.samples, ("data", "norm", "bounds")),
                attack="smallest eps" if is_minimum else row.attack,
                eps=record.eps,
                accuracy=row.accuracy,
                low=row.low,
                high=row.high,
                rule=PROVEN if row.proof else record.rule,
            )


def _context(
    record: EvaluationHeader, settings: Mapping[str, Value], older: str, samples: int, same: Sequence[str]
) -> tuple[str, str, str, str, bool, int, bool, str, SampleSet]:
    """Return the fields of a Context; `same` names the settings that the run's own evaluations share with it."""
    bounds = NOT_SET if record.bounds is None else [*record.bounds]
    values = {"data": record.data, "norm": record.norm, "bounds": bounds, "eps": getattr(record, "eps", None)}
    is_own = not record.target and all(values[name] == settings.get(name, values[name]) for name in same)
    about = (record.checkpoint, record.data, record.split, record.norm)
    seed, contents = record.seed if samples < record.of else 0, "" if record.split else record.contents
    sample_set = SampleSet(record.data, record.split, record.of, samples, seed, contents)
    return *about, record.bounds is not None, samples, is_own, older, sample_set


# ---- .npz files


def read_predictions(evaluation: Evaluation) -> tuple[Labels, Labels] | None:
    """Read the labels of the attacked samples and their predictions under attack; None without any."""
    found = _read_beside(evaluation.source, read_evaluation(evaluation.source), ("label", "attack", "prediction"))
    if found is None:
        return None
    attacks = [str(name) for name in found["attack"]]
    label, predictions = found["label"].astype(np.int64), found["prediction"].astype(np.int64)
    shape = (len(attacks), len(label))
    if evaluation.attack not in attacks or predictions.shape != shape or not len(label) or min(label) < 0:
        raise _mismatch(evaluation.source)
    prediction = predictions[attacks.index(evaluation.attack)]
    attacked = prediction >= 0
    return (label[attacked], prediction[attacked]) if attacked.any() else None


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Which samples each attack of a record broke."""

    index: Labels  # of each sample in its split, growing
    broken: Mapping[str, Flags]  # by attack; of a proof, what it does not prove

    def broken_on(self, index: Labels, attack: str) -> Flags:
        """Return which samples of an index an attack broke; False where it was not run."""
        place = np.minimum(np.searchsorted(self.index, index), len(self.index) - 1)
        broken: Flags = self.broken[attack][place] & (self.index[place] == index)
        return broken


def read_verdicts(source: Path) -> Verdicts | None:
    """Read what the attacks of a record found per sample; None if it is not there.

    Raises:
        InputError: The file does not belong to the record, or is damaged.
    """
    if not source.with_suffix(".npz").is_file():
        return None
    record = read_evaluation(source)
    found = _read_beside(source, record, ("index", "attack", "broken"))
    if found is None or not isinstance(record, EvaluationRecord):
        return None
    index, broken = found["index"].astype(np.int64), found["broken"].astype(np.bool_)
    attacks = [str(name) for name in found["attack"]]
    missing = {row.attack for row in record.attacks} - {ALL, *attacks}
    order = np.argsort(index)
    sizes = (len(attacks), record.samples) == broken.shape and index.shape == (record.samples,)
    if missing or not sizes or (np.diff(index[order]) == 0).any():
        raise _mismatch(source)
    return Verdicts(index[order], {attack: row[order] for attack, row in zip(attacks, broken, strict=True)})


def _read_beside(source: Path, record: AnyRecord, names: Sequence[str]) -> dict[str, NDArray[np.generic]] | None:
    """Read arrays of the .npz beside a record, which keeps its sum; None if one of them is missing."""
    path = source.with_suffix(".npz")
    if record.files.get(path.name, sha256_of_file(path)) != sha256_of_file(path):
        raise _mismatch(source)
    found = read_arrays(path, names, sealed=record.format >= SEALED_FORMAT)
    return found if len(found) == len(names) else None


def _mismatch(source: Path) -> InputError:
    return InputError("predictions-mismatch", path=source.with_suffix(".npz"), name=source.name)


@dataclass(frozen=True, eq=False)
class Gallery:
    """One sample per class, before and after an attack."""

    run: str
    attack: str
    checkpoint: str
    ball: str
    classes: tuple[str, ...]
    label: Labels
    before: Labels  # predictions
    after: Labels
    clean: Floats  # (n, height, width, channels) in [0, 1]
    adversarial: Floats


def read_gallery(source: Path, run: str, *, sealed: bool = True) -> Gallery:
    """Read the gallery that an evaluation left; before format 2 it was not sealed."""
    found = read_arrays(source, ("about", *GALLERY_ARRAYS), sealed=sealed)
    try:
        about = msgspec.json.decode(str(found["about"]), type=GalleryHeader, strict=False)
        label, before, after = (found[name].astype(np.int64) for name in GALLERY_ARRAYS[:3])
        clean, adversarial = (np.moveaxis(found[name].astype(np.float64), 1, -1) for name in GALLERY_ARRAYS[3:])
        if not clean.shape == adversarial.shape == (len(label), *clean.shape[1:3], 3 if clean.shape[-1] == 3 else 1):
            raise ValueError(f"the images have the shape {clean.shape}")
        if not len(label) == len(before) == len(after) or max(label, default=0) >= len(about.classes):
            raise ValueError("labels and classes do not fit")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError("gallery-invalid", path=source, error=error) from error
    ball = f"{about.norm}, ε = {about.eps:.4g}"
    return Gallery(run, about.attack, about.checkpoint, ball, about.classes, label, before, after, clean, adversarial)


def check_same_samples(records: Mapping[Path, AnyRecord]) -> None:
    """Raise InputError if records of the same data set and subset are of other samples: they cannot be compared."""
    seen: dict[tuple[object, ...], tuple[Path, str]] = {}
    for source, record in records.items():
        if not record.split:  # samples in memory, which may all have one name
            continue
        by_rows = record.contents.startswith("rows:")  # of samples that were not in memory
        kind = (record.data, record.split, record.samples, record.of, record.seed, record.target, by_rows)
        other, contents = seen.setdefault(kind, (source, record.contents))
        if record.contents and contents and record.contents != contents:
            raise InputError("record-other-samples", path=source, other=other, data=record.data)
