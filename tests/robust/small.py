"""Small runs on digits: quick to train, and to compare bit by bit."""

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from sihg.robust import data
from sihg.robust.data.samples import Samples
from sihg.robust.memory import PerturbationMemory
from sihg.robust.training.config import Settings
from sihg.robust.training.optimizer import flatten_state
from sihg.robust.training.trainer import Trainer
from sihg.store.run_folder import RunFolder
from sihg.store.tables import read_json_lines, read_table

N = 100  # samples; in batches of 32 an epoch has the steps 32, 32, 32 and 4
STEPS = 4


def digits(n: int = N) -> Samples:
    return data.load("digits")[0].take(slice(n))


def settings(**values: Any) -> Settings:
    small = {"epochs": 3, "batch_size": 32, "width": 0.25, "method": "msi-hg"}
    return Settings().with_values({**small, **values})


def fingerprint(run: Trainer) -> dict[str, Any]:
    """Everything that must be the same however often a run was interrupted: tensors as bytes, no seconds."""
    state, optimizer = flatten_state(run.optimizer.inner.state_dict())
    tensors = {"weights": run.model.state_dict(), "optimizer": optimizer}
    tensors["average"] = {} if run.optimizer.average is None else run.optimizer.average.state_dict()
    here = run.progress
    for lane, method in run.methods.items():
        memory: PerturbationMemory | None = getattr(method, "memory", None)
        tensors[f"method-{lane}"] = method.state(here.epoch) if memory is None else memory.state(here.epoch)
    flat = {f"{group}.{name}": as_bytes(t) for group, some in tensors.items() for name, t in some.items()}
    found: dict[str, Any] = flat | {"optimizer": state, "progress": without_seconds(msgspec.to_builtins(here))}
    return found | ({} if run.folder is None else records(run.folder.path))


def records(path: Path) -> dict[str, Any]:
    """The lines of the table and of the log, and the best weights."""
    folder = RunFolder(path)
    best = {p.name: (p / "weights.safetensors").read_bytes() for p in folder.checkpoints.glob("best-*")}
    rows, log = read_table(folder.metrics), read_json_lines(folder.log)
    memory = read_table(folder.memory_table) if folder.memory_table.exists() else []
    lines = {"rows": [without_seconds(r) for r in rows], "log": [without_seconds(e) for e in log]}
    return {**lines, "memory": memory, "best": best}


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if "seconds" not in key}
    return value


def as_bytes(t: Tensor) -> tuple[str, bytes]:
    t = t.detach().cpu().contiguous()
    return f"{t.dtype} {tuple(t.shape)}", t.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Name what differs, instead of showing bytes."""
    assert found.keys() == expected.keys()
    assert [key for key in expected if found[key] != expected[key]] == []
    json.dumps(expected["progress"])  # and what is not a tensor is plain
