"""The model_info JSON of RobustBench, with its field names. What only the authors know is null."""

import json
import re
from pathlib import Path

from sihg.errors import InputError
from sihg.formats.source_run import SourceRun
from sihg.store.files import make_parents, status, write_text
from sihg.store.schema import AttackRow, EvaluationRecord

STANDARD, NATURAL = "standard", "natural"
THREATS = {"linf": "Linf", "l2": "L2"}
KNOWN_DATA = ("cifar10", "cifar100", "imagenet")
FOR_AUTHORS = ("link", "name", "authors", "venue")


def write_robustbench_info(source: SourceRun, out: Path, *, overwrite: bool = False) -> tuple[Path, list[str]]:
    """Write the file; return its path, and what the user has to know.

    Args:
        source: The run.
        out: A .json file, or a folder that gets model_info/DATA/NORM/NAME.json, as in RobustBench's repository.
        overwrite: Replace the file.
    Raises:
        InputError: These weights have no evaluation by AutoAttack's standard set within the ball of the training.
    """
    record = _find_record(source)
    rows = {row.attack: row for row in record.attacks}
    threat = THREATS.get(record.norm, record.norm)
    folders = (re.sub(r"[^\w-]+", "_", name) for name in (record.data, threat))  # a record may have a path here
    file = out if out.suffix == ".json" else Path(out, "model_info", *folders, f"{source.name}.json")
    if status(file) is not None and not overwrite:
        raise InputError("export-exists", out=file)
    content = {
        "link": None,
        "name": None,
        "authors": None,
        "additional_data": False,
        "number_forward_passes": record.votes,
        "dataset": record.data,
        "venue": None,
        "architecture": str(source.settings["model"]),
        "eps": _eps(record.eps),
        "clean_acc": _percent(rows[NATURAL]) if NATURAL in rows else None,
        "reported": _percent(rows[STANDARD]),
        "autoattack_acc": _percent(rows[STANDARD]),
        "footnote": f"Trained by {source.settings['method.name']} with sihg.",
        "unreliable": any(check.result == "error" for check in record.checks),
    }
    make_parents(file)
    write_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    notes = [f"fill in {', '.join(FOR_AUTHORS)}, and additional_data if the training used more than {record.data}"]
    if NATURAL not in rows:
        notes.append("clean_acc is null: evaluate with --attacks natural,standard")
    if record.samples < record.of:
        notes.append(f"RobustBench evaluates all samples; this is of {record.samples} of {record.of}")
    if record.data not in KNOWN_DATA:
        notes.append(f"RobustBench has no leaderboard for {record.data}: it has {', '.join(KNOWN_DATA)}")
    return file, notes


def _find_record(source: SourceRun) -> EvaluationRecord:
    """Return the record on most samples that has the standard set within the ball of the training."""
    settings = source.weights.settings
    found = [
        record
        for record in source.records.values()
        if isinstance(record, EvaluationRecord)
        and any(row.attack == STANDARD for row in record.attacks)
        and (record.norm, record.split, record.target) == (settings.norm, "test", "")
        and abs(record.eps - settings.eps) < 1e-9
    ]
    if not found:
        raise InputError("robustbench-needs-standard", run=source.folder.path, checkpoint=source.weights.label)
    return max(found, key=lambda record: (record.samples, any(row.attack == NATURAL for row in record.attacks)))


def _eps(eps: float) -> str:
    """Return eps as RobustBench writes it: 8/255, or 0.5."""
    steps = round(255 * eps)
    return f"{steps}/255" if steps and abs(255 * eps - steps) < 1e-6 else f"{eps:g}"


def _percent(row: AttackRow) -> str:
    return f"{100 * row.accuracy:.2f}"
