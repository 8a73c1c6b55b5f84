"""Find a finished evaluation among the records, so that it is not made again.

A record that was damaged, edited or made by somebody else is not believed, and the evaluation is made again.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from sihg.core.processes import ALONE, Processes
from sihg.errors import InputError
from sihg.robust.attacks.outcome import Outcome, join_outcomes
from sihg.robust.evaluation.findings import PER_SAMPLE, Findings
from sihg.robust.evaluation.own_seal import FIELD, Record, has_own_seal, record_content
from sihg.robust.evaluation.partial import map_points
from sihg.store.arrays import read_arrays
from sihg.store.files import sha256_of_file, status
from sihg.store.run_folder import describe_environment
from sihg.store.schema import CurveRecord, EvaluationRecord, read_evaluation

if TYPE_CHECKING:
    from sihg.robust.evaluation.task import Task

OF_THE_FILE = ("weights", "files", FIELD)  # fields of a record that the evaluation itself does not have


def fingerprint(task: "Task") -> str:
    """Return the SHA-256 of all that decides the result; "" if that is not known, as of a function in no file."""
    try:
        identity = task.identity()
    except InputError:
        return ""
    here = describe_environment()
    rounding = {"torch": here.torch, "processor": here.processor, "batch_size": task.batch_size}
    about = {**identity, "trained_with": task.trained_with, **rounding}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def find_stored(task: "Task", home: Path, *, points: bool = False, processes: Processes = ALONE) -> Findings | None:
    """Return the evaluation that a record in `home` holds if it is this one, else None; all processes agree.

    Args:
        task: The evaluation to look for.
        home: The folder of the records.
        points: Whether the adversarial examples must be there, too.
        processes: Who looks.
    """
    found = _find(task, home, points=points)
    return found if all(processes.gather(found is not None)) else None


def _find(task: "Task", home: Path, *, points: bool) -> Findings | None:
    path = home / f"{task.name}.json"
    if status(path) is None:
        return None
    about = fingerprint(task)
    try:
        record = read_evaluation(path)
        if not has_own_seal(record, about):
            return None
        needed = [f"{task.name}.npz", *([f"{task.name}.points.npy"] if points else [])]
        if any(sha256_of_file(home / name) != record.files.get(name) for name in needed):
            return None
        found = _rebuild(task, record, home / needed[0])
        if points:
            found = replace(found, kept_points=torch.from_numpy(map_points(home / needed[1])))
    except (InputError, OSError, KeyError, ValueError, StopIteration):
        return None
    if record_content(found.record, *OF_THE_FILE) != record_content(record, *OF_THE_FILE):
        return None
    return replace(found, fingerprint=about, stored=path)


def _rebuild(task: "Task", record: Record, arrays_path: Path) -> Findings:
    """Return the evaluation of a record and the arrays beside it."""
    arrays = read_arrays(arrays_path)
    places = {str(name): place for place, name in enumerate(arrays["attack"].tolist())}
    rows = record.curves if isinstance(record, CurveRecord) else record.attacks
    outcomes: dict[str, Outcome] = {}
    for name, plan in task.plans.items():
        row = next(row for row in rows if row.attack == name)
        for stage in row.stages or (row,):
            key = name if len(plan) == 1 else f"{name}: {stage.attack}"
            found: dict[str, Any] = {field: torch.from_numpy(arrays[field][places[key]].copy()) for field in PER_SAMPLE}
            outcomes[key] = Outcome(
                stage.attack,
                **found,
                passes=int(stage.passes),
                forwards=int(stage.forwards),
                seconds=stage.seconds,
                done=int(found["attacked"].sum()),
                remark=stage.remark,
                proof=stage.proof,
                votes=record.votes,
                wrong=torch.from_numpy(arrays["wrong"][places[key]].copy()) if "wrong" in arrays else None,
            )
    header = msgspec.structs.replace(task.header, votes=record.votes)  # which the model decides, if nobody asks
    return task.kind(
        *(task.name, header, task.ball, task.index, task.samples.y),
        tuple(join_outcomes(task.plans, outcomes)),
        record.checks,
        record.checks_seconds if isinstance(record, EvaluationRecord) else 0.0,
        environment=record.environment,
        radii=task.radii,
    )
