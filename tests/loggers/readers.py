"""Read back what loggers keep in files of their own."""

import json
import sqlite3
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

BLOCK = 2**15  # bytes, of a .wandb file


@dataclass
class Kept:
    """What a logger has kept of a run."""

    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # by name: step and value, in order
    results: dict[str, float] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    runs: int = 0

    def add(self, name: str, step: int, value: float) -> None:
        self.points.setdefault(name, []).append((step, value))


def read_tensorboard(run: Path) -> Kept:
    event_of: Any = import_module("tensorboardX.proto.event_pb2").Event.FromString
    kept = Kept(runs=1)
    for file in sorted((run / "tensorboard").glob("*tfevents*"), key=lambda path: path.stat().st_mtime_ns):
        content = file.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            event = event_of(content[12 : 12 + size])  # after the length and its checksum
            for value in event.summary.value:
                if value.tag.endswith("/text_summary"):
                    _add_text(kept, value.tag, value.tensor.string_val[0].decode())
                elif value.tag.startswith("evaluation/"):
                    kept.results[value.tag] = value.simple_value
                else:
                    kept.add(value.tag, event.step, value.simple_value)
            content = content[16 + size :]
    return kept


def _add_text(kept: Kept, tag: str, text: str) -> None:
    if not tag.startswith("config"):
        kept.texts.append(text)
        return
    rows = [line.strip("| ").split(" | ", 1) for line in text.splitlines()[2:]]
    kept.config = {name: value.strip("`") for name, value in rows}


def read_wandb(_run: Path) -> Kept:
    record_class: Any = import_module("wandb.proto.wandb_internal_pb2").Record
    import_module("wandb").teardown()  # ends the process that writes the files
    kept, ids = Kept(), set()
    for file in sorted(Path("wandb").glob("offline-run-*/*.wandb")):
        for data in _wandb_records(file.read_bytes()):
            record = record_class.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.add(record.run.run_id)
                kept.config |= {item.key: str(json.loads(item.value_json)) for item in record.run.config.update}
            elif kind == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                for name, value in row.items():
                    if not name.startswith("_"):
                        kept.add(name, row["_step"], value)
            elif kind == "summary":
                for item in record.summary.update:
                    name, value = item.key or "/".join(item.nested_key), json.loads(item.value_json)
                    if isinstance(value, str):
                        kept.texts.append(value)
                    elif name.startswith("evaluation/"):
                        kept.results[name] = value
            elif kind == "alert":
                kept.texts.append(record.alert.text)
    kept.runs = len(ids)
    return kept


def _wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: a header, then LevelDB's log format, in blocks of 32 KiB."""
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(content):
        left = BLOCK - at % BLOCK
        if left < 7:  # too little for a record's header
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])  # after the checksum
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def read_mlflow(_run: Path) -> Kept:
    mlflow: Any = import_module("mlflow")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("sihg")
    runs = client.search_runs([experiment.experiment_id])
    kept = Kept(runs=len(runs))
    for run in runs:
        kept.config |= run.data.params
        kept.texts += [value for key, value in run.data.tags.items() if not key.startswith("mlflow.")]
        for name in run.data.metrics:
            for point in client.get_metric_history(run.info.run_id, name):
                if name.startswith("evaluation/"):
                    kept.results[name] = point.value
                else:
                    kept.add(name, point.step, point.value)
    return kept


def read_trackio(run: Path) -> Kept:
    folder: Any = import_module("trackio.utils").TRACKIO_DIR  # fixed when the package is imported
    kept, own = Kept(), f"{run.name}-%"
    with sqlite3.connect(Path(folder, "sihg.db")) as base:
        query = "SELECT step, metrics FROM metrics WHERE run_name LIKE ? ORDER BY id"
        for step, text in base.execute(query, (own,)):
            for name, value in json.loads(text).items():
                if isinstance(value, str):
                    kept.texts.append(value)
                elif name.startswith("evaluation/"):
                    kept.results[name] = value
                else:
                    kept.add(name, step, value)
        for (text,) in base.execute("SELECT config FROM configs WHERE run_name LIKE ?", (own,)):
            kept.config |= {name: str(value) for name, value in json.loads(text).items()}
        count = base.execute("SELECT COUNT(DISTINCT run_name) FROM metrics WHERE run_name LIKE ?", (own,))
        (kept.runs,) = count.fetchone()
    return kept


READERS: dict[str, Callable[[Path], Kept]] = {
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
    "trackio": read_trackio,
}


def numbers(kept: Kept) -> Iterator[tuple[str, int, float]]:
    """Yield all points that are not of single steps."""
    for name, points in kept.points.items():
        if not name.startswith("step/"):
            yield from ((name, step, value) for step, value in points)
