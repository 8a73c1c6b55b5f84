"""Run folders as `sihg train` leaves them, written by hand."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from sihg.store.arrays import write_arrays
from sihg.store.files import sha256_of_file, write_bytes
from sihg.store.manifest import manifest_bytes
from sihg.store.run_folder import RunFolder
from sihg.store.schema import MEMORY_COLUMNS, read_json, read_run_config, write_json
from sihg.store.tables import JsonLines, Table

COLUMNS = (
    *("epoch", "step", "loss", "accuracy", "natural", "robust", "lr", "passes", "moved", "saturated"),
    *("seconds", "evaluation_seconds"),
)
Row = dict[str, Any]


def rows(natural: Sequence[float | None], robust: Sequence[float | None], passes: float = 6.0) -> list[Row]:
    """The rows of so many epochs."""
    return [
        {"epoch": i, "step": 26 * i, "loss": 2.0 / i, "accuracy": 0.5 + 0.01 * i, "natural": n, "robust": r}
        | {"lr": 0.05, "passes": passes * i, "seconds": 1.25 * i, "evaluation_seconds": 0.1 * i}
        for i, (n, r) in enumerate(zip(natural, robust, strict=True), 1)
    ]


def write_run(
    path: Path,
    done: Sequence[Row] | None = None,
    *,
    method: str = "msi-hg",
    warnings: Sequence[str] = (),
    environment: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write a run folder."""
    folder = RunFolder.create(path)
    done = rows([0.7, 0.9, 0.85], [0.1, 0.45, 0.4]) if done is None else done
    chosen = {"data": "digits", "model": "small-cnn", "eps": 0.25, "norm": "linf", "bounds": [0.0, 1.0], "seed": 0}
    chosen |= {"epochs": len(done), **settings}
    folder.begin({**chosen, "method": {"name": method}, "optimizer": {"name": "sgd", "lr": 0.05}}, threads=1)
    write_json(folder.environment, {"python": "3.11.2"} if environment is None else environment)
    table, log = Table(folder.metrics, COLUMNS), JsonLines(folder.log)
    for row in done:
        table.append(row)
        log.append({"event": "epoch", **row})
    for text in warnings:
        log.append({"event": "warning", "epoch": 1, "text": text})
    return path


def write_checkpoint(run: Path, name: str = "last-00000078", **changes: Any) -> str:
    """Write the manifest of a checkpoint, made after all lines of the tables so far; return the sum of its weights."""
    folder = RunFolder(run)
    files = {"metrics": Table(folder.metrics, COLUMNS), "log": JsonLines(folder.log)}
    if folder.memory_table.exists():
        files["memory"] = Table(folder.memory_table, MEMORY_COLUMNS)
    marks = {table: {"bytes": lines.mark().bytes, "sum": lines.mark().sum} for table, lines in files.items()}
    state = {"name": name, "tables": marks, "settings": read_run_config(folder.config).settings} | changes
    weights = sha256(json.dumps([name, changes]).encode()).hexdigest()
    write_bytes(folder.checkpoints / name / "manifest.json", manifest_bytes({}, {"weights": weights, **state}))
    return weights


HEADER: Row = {
    "weights": "",
    "sha256": "",
    "checkpoint": "last",
    "data": "digits",
    "split": "test",
    "samples": 397,
    "of": 397,
    "seed": 0,
    "norm": "linf",
    "bounds": [0.0, 1.0],
    "device": "cpu",
    "rule": "any iterate",
}


def attack_row(attack: str, accuracy: float, samples: int = 397, **changes: Any) -> Row:
    """A row of a record."""
    row: Row = {"attack": attack, "accuracy": accuracy, "low": 0.0, "high": 1.0, "samples": samples, "broken": 0}
    costs = {"passes": 0.0, "forwards": 0.0, "seconds": 0.5, "passes_per_sample": 1.0, "forwards_per_sample": 1.0}
    return row | costs | changes


def write_evaluation(path: Path, name: str = "last_test", **changes: Any) -> Path:
    """Write a record as `sihg evaluate` keeps it."""
    samples = changes.pop("samples", 397)
    attacks = [
        attack_row("natural", 0.96875, samples, low=0.9, high=0.99, passes_per_sample=0.0),
        attack_row("pgd-20", 0.4375, samples, low=0.4, high=0.5, passes_per_sample=12.5),
    ]
    return _write_record(path, name, {**HEADER, "samples": samples, "eps": 0.25, "attacks": attacks} | changes)


def write_curve(
    path: Path,
    attack: str = "pgd-20",
    accuracy: Sequence[float] = (0.9, 0.5, 0.1),
    name: str = "curve",
    **changes: Any,
) -> Path:
    """Write a record as `sihg evaluate --curve` keeps it."""
    row: Row = {"attack": attack, "accuracy": list(accuracy), "passes": 0.0, "forwards": 0.0, "seconds": 0.5}
    row |= {"low": [a - 0.05 for a in accuracy], "high": [a + 0.05 for a in accuracy]}
    return _write_record(path, name, {**HEADER, "eps": [0.0, 0.1, 0.2], "curves": [row]} | changes)


def write_verdicts(record: Path, attacks: dict[str, Sequence[int]], label: Sequence[int]) -> None:
    """Write what is kept of each sample beside a record: its prediction under each attack."""
    arrays = {"label": np.array(label), "attack": np.array([*attacks]), "prediction": np.array([*attacks.values()])}
    write_beside(record, arrays)


def write_broken(record: Path, attacks: Mapping[str, Sequence[bool]], index: Sequence[int]) -> None:
    """Write which samples each attack broke beside a record."""
    broken = np.array([*attacks.values()])
    write_beside(record, {"index": np.array(index), "attack": np.array([*attacks]), "broken": broken})


def write_found(
    path: Path,
    name: str,
    attacks: Mapping[str, Sequence[bool]],
    index: Sequence[int],
    *,
    kept: bool = True,
    **changes: Any,
) -> Path:
    """Write a record of what attacks broke, with the row of all of them, and what is kept of each sample."""
    every, n = {**attacks, "all": np.array([*attacks.values()]).any(0)}, len(index)
    held = {attack: int(np.sum(~np.array(found))) for attack, found in every.items()}
    rows = [attack_row(attack, count / n, n, broken=n - count) for attack, count in held.items()]
    record = write_evaluation(path, name, samples=n, attacks=rows if len(attacks) > 1 else rows[:1], **changes)
    if kept:
        write_broken(record, attacks, index)
    return record


def write_beside(record: Path, arrays: dict[str, Any]) -> Path:
    """Write the arrays beside a record, which keeps their sum."""
    file = write_arrays(record.with_suffix(".npz"), arrays)
    write_json(record, read_json(record, "") | {"files": {file.name: sha256_of_file(file)}})
    return file


def write_memory(path: Path, moved: Sequence[float] = (0.5, 0.25)) -> None:
    """Write the memory's table: all in the first bin, then half in the last."""
    table = Table(path / "memory.csv", MEMORY_COLUMNS)
    for i, move in enumerate(moved, 1):
        bins = {"to_0.1": 1 / i, "to_1": 1 - 1 / i}
        table.append({"epoch": i, "moved": move, "saturated": 0.5, **dict.fromkeys(MEMORY_COLUMNS[3:], 0.0), **bins})


def write_gallery(path: Path, channels: int = 1, **changes: Any) -> Path:
    """Write a gallery of two classes, of which the second is broken."""
    about = {"attack": "pgd-20", "accuracy": 0.5, "checkpoint": "last", "eps": 0.25, "norm": "linf", "sha256": ""}
    about |= {"data": "digits", "split": "test", "bounds": [0.0, 1.0], "rule": "any iterate"}
    clean = np.linspace(0, 1, 2 * channels * 16, dtype=np.float32).reshape(2, channels, 4, 4)
    arrays = {"label": np.array([0, 1]), "before": np.array([0, 1]), "after": np.array([0, 0]), "clean": clean}
    text = json.dumps(about | {"classes": ["zero", "one"]} | changes)
    arrays |= {"about": np.array(text), "adversarial": clean[:, :, ::-1]}
    return write_arrays(path / "gallery.npz", arrays)


def _write_record(path: Path, name: str, record: dict[str, Any]) -> Path:
    return write_json(path / "evaluation" / f"{name}.json", record)


def read_page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def read_csv(folder: Path, name: str = "runs") -> list[dict[str, str]]:
    with (folder / "report" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers(page: str) -> set[float]:
    return {float(value) for value in re.findall(r'<data value="([^"]+)">', page)}
