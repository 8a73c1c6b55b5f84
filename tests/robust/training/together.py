"""What processes do together in one start: `torchrun ... -m tests.robust.training.together JOB FOLDER [STEP]`.

Starting a process takes seconds and a small training a fraction of one, so that a job trains many.
"""

import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import sihg
from sihg.core.processes import Processes, join_processes
from sihg.robust import models
from sihg.robust.attacks import runner
from sihg.robust.evaluation import partial
from sihg.robust.training.events import Event, OnEvent, StepDone, Trained
from sihg.store import memory_files
from tests.robust.evaluation.heard import by_part
from tests.robust.small import digits

SMALL: dict[str, Any] = {"eps": 0.2, "epochs": 2, "batch_size": 32, "lanes": 4, "lr": 0.05}
WATCHED: dict[str, Any] = {"validation": 20, "evaluate_with": "pgd-3"}
RESNET = {"model": "preact-resnet8"}
CASES: dict[str, dict[str, Any]] = {
    "msi-hg": {"steps": 2, "fresh": 0.3, **WATCHED},
    "msi-hg in files": {"steps": 2, "memory_files": True},
    "msi-hg bn": {"steps": 2, "ema": 0.9, **RESNET, **WATCHED},
    "msi-hg augmented": {
        "steps": 2,
        "flip": True,
        "crop": 1,
        "augment_delta": "independent",
        "clip": 0.5,
        "ema": 0.8,
        "ramp": 1.5,
        "schedule": "cosine",
    },
    "msi-hg l2": {"steps": 2, "norm": "l2", "eps": 1.0, "optimizer": "adamw", "lr": 0.01},
    "pgd": {"method": "pgd", "steps": 2, "flip": True, "crop": 1, **WATCHED},
    "pgd bn": {"method": "pgd", "steps": 2, **RESNET},
    "pgd awp": {"method": "pgd", "steps": 2, "awp_gamma": 0.01, "label_smoothing": 0.1, "ema": 0.9, **RESNET},
    "atta": {"method": "atta", "steps": 2, "reset": 2, "noise": 0.05, "crop": 1},
    "fgsm-pgi": {"method": "fgsm-pgi", "flip": True, "crop": 1},
    "fgsm-pgi in files": {"method": "fgsm-pgi", "memory_files": True, "awp_gamma": 0.01, **RESNET},
    "n-fgsm": {"method": "n-fgsm", "ramp": 1.5},
    "mart": {"method": "mart", "steps": 2, **RESNET},
    "dat": {"method": "dat", "steps": 4},
    "dat weighted": {"method": "dat", "steps": 4, "weighted": True, "lanes": 8},
    "yopo": {"method": "yopo", "outer": 2, "inner": 2},
    "trades": {"method": "trades", "steps": 2, **RESNET},
    "free": {"method": "free", "replays": 3, "ema": 0.5},
    "fast": {"method": "fast", "crop": 2},
    "fgsm": {"method": "fgsm", "clip": 0.2},
    "ibp": {"method": "ibp", "theta": 0.5},
    "natural": {"method": "natural", "optimizer": "rmsprop", "lr": 0.01, **WATCHED},
    "dropout": {"method": "natural", "model": "dropout", "lanes": 8},
    "a batch of one sample": {"steps": 2, "batch_size": 33},  # in the last batch, one process has no sample
}
RESUMED = ("msi-hg", "msi-hg in files", "msi-hg bn", "fgsm-pgi in files", "dat weighted", "free", "dropout")
ATTACKS = "natural,pgd-5,square-20"
ROWS = 16  # of a chunk of an evaluation


def build(name: str) -> nn.Module:
    if name == "dropout":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))
            return nn.Sequential(OrderedDict(stem=nn.Identity(), body=body))
    return models.build(name, (1, 8, 8), 10, width=1 / 8, seed=0)


def train(folder: Path, processes: Processes, name: str, **options: Any) -> Trained:
    """Train one case in FOLDER/NAME; "a batch of one sample" has 100 samples in batches of 33."""
    values = {**SMALL, **CASES[name]}
    model = build(values.pop("model", "small-cnn"))
    return sihg.fit(model, digits(), out=folder / name, processes=processes, **{**values, **options})


def train_all(folder: Path, processes: Processes) -> None:
    """Train every case."""
    for name in CASES:
        assert train(folder, processes, name).finished


def go_on(folder: Path, processes: Processes, step: int) -> None:
    """Begin or continue some cases, with a checkpoint after each step, until the last process is told to stop."""
    for name in RESUMED:
        begun = (folder / name / "config.toml").exists()
        processes.wait()
        trained = train(folder, processes, name, resume=begun, checkpoint_minutes=0, on_event=stop_at(step, processes))
        assert trained.finished == (step == 0)


def stop_at(step: int, processes: Processes) -> OnEvent:
    """Return what sends SIGTERM to the last process at a step."""

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step and processes.rank == processes.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_event


def kill_at(folder: Path, processes: Processes, step: int) -> None:
    """Begin a case and end the last process at a step, as if it were killed."""

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step and processes.rank == processes.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    train(folder, processes, "msi-hg in files", checkpoint_minutes=0, on_event=on_event)


def evaluate(folder: Path, processes: Processes, parts: int) -> None:
    """Evaluate a model in FOLDER, with Ctrl-C on all processes after so many parts (0: never)."""
    heard = 0

    def interrupt(_attack: str, done: int, _of: int) -> None:
        nonlocal heard
        heard += done > 0
        if parts and heard == parts:
            raise KeyboardInterrupt

    model = build("small-cnn").eval()
    shared: dict[str, Any] = {"attacks": ATTACKS, "resume": folder, "points": True, "processes": processes}
    try:
        result = sihg.evaluate(model, digits(), eps=0.05, progress=by_part(interrupt), **shared)
    except KeyboardInterrupt:
        return
    if processes.is_first:
        result.save(folder, name="record")
    processes.wait()


@contextmanager
def equal_ids() -> Iterator[None]:
    """Give all memories in files the same id, which is random and enters the sum of each row."""
    with patch.object(memory_files, "secrets", SimpleNamespace(token_hex=lambda count: "ab" * count)):
        yield


@contextmanager
def small_chunks() -> Iterator[None]:
    """Evaluate few samples at a time, and write partial results after each time."""
    with patch.object(runner, "rows_per_chunk", lambda _: ROWS), patch.object(partial, "SECONDS_BETWEEN_WRITES", 0.0):
        yield


def main(job: str, folder: Path, step: int) -> None:
    """Do a job."""
    torch.set_num_threads(1)
    steps: dict[str, Callable[[Path, Processes, int], None]] = {"go-on": go_on, "kill": kill_at, "evaluate": evaluate}
    with equal_ids(), small_chunks(), join_processes(minutes=2) as processes:
        if job == "train":
            train_all(folder, processes)
        else:
            steps[job](folder, processes, step)
    if sys.platform == "linux":  # threads that outlive the group can abort the interpreter when it ends
        names = [(task / "comm").read_text(encoding="utf-8") for task in Path("/proc/self/task").iterdir()]
        assert not [name for name in names if "gloo" in name]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
