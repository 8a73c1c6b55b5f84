"""The commands that faults disturb, how a user recovers, and the results that must come out the same.

All functions work in the current folder and use the folder `run` in it.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sihg
from sihg.cli.main import main
from sihg.errors import SihgError
from sihg.experiments.cell import evaluate_cell, train_cell
from sihg.experiments.grid_run import GridRun, build_grid
from sihg.minimax import comparison
from sihg.minimax.comparison import Comparison, compare
from sihg.robust.evaluation import partial
from sihg.robust.training.events import CheckpointSaved
from sihg.store import trust
from sihg.store.checkpoint import newest_checkpoint
from sihg.store.tables import read_json_lines, read_table
from tests.faults.child import Ended, run_in_child

RUN = Path("run")
SMALL = {
    "samples": 60,
    "width": "1/4",
    "epochs": 2,
    "batch_size": 20,
    "method.steps": 1,
    "validation": 20,
    "evaluate_with": "pgd-1",
    "checkpoint_minutes": 0,
}
TRAIN = [
    *("train", "--out", "run", "--data", "digits", "--method", "msi-hg", "--threads", "1"),
    *(word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")),
    *("--log", f"{__name__}:announce"),
]
EVALUATE = ["evaluate", "run", "--attacks", "natural,pgd-2", "--samples", "20", "--points", "--threads", "1"]
# What differs between two undisturbed runs, besides times: sums over times, and the drawn name of a memory's files.
VARYING = ("stopped", "sum", "id", "tags")
Result = dict[str, Any]

# What commands import when they need it; imported here, it does not take its time in every child.
LATER = (
    *("filelock", "jinja2", "matplotlib.style", "rich.progress", "rich.table", "torch._dynamo"),
    *(f"sihg.cli.{command}" for command in ("compare", "evaluate", "report", "reproduce", "resume", "solve", "train")),
    *("sihg.cli.grid_progress", "sihg.cli.grid_table", "sihg.report.solve_report", "sihg.report.training_report"),
)

announced: list[int] = []  # the steps of the checkpoints that this process said it saved


@dataclass(frozen=True)
class Workload:
    """A command and what belongs to it."""

    name: str
    work: Callable[[], int]  # returns the exit code
    recover: Callable[[], int]  # what a user does after a fault
    result: Callable[[], Result]
    prepare: Callable[[], int] = lambda: 0  # what must be there before


def announce(event: object) -> None:
    """Receive the events of a training."""
    if isinstance(event, CheckpointSaved):
        announced.append(event.step)


# ---- training


def train() -> int:
    return main(TRAIN)


def train_with_files() -> int:
    return main([*TRAIN, "--memory-files"])


def resume_or(start: Callable[[], int]) -> Callable[[], int]:
    """Return what a user does: resume the run if there is one, else start it."""
    return lambda: main(["resume", "run"]) if (RUN / "config.toml").exists() else start()


def trained(folder: Path = RUN) -> Result:
    found: Result = {file: scrub(read_table(folder / file)) for file in ("metrics.csv", "memory.csv")}
    found["log.jsonl"] = scrub(read_json_lines(folder / "log.jsonl"))
    for prefix in ("last", "best"):
        for group, tensors in newest_checkpoint(folder / "checkpoints", prefix)[0].tensors.items():
            found[f"{prefix}/{group}"] = scrub({name: digest(tensor.numpy()) for name, tensor in tensors.items()})
    return found


def newest_step() -> int:
    """Return the step of the newest checkpoint that is whole."""
    return int(newest_checkpoint(RUN / "checkpoints", "last")[0].path.name.rpartition("-")[2])


# ---- evaluation


def evaluate() -> int:
    partial.SECONDS_BETWEEN_WRITES = 0.0
    return main(EVALUATE)


def evaluated(folder: Path = RUN) -> Result:
    files = {*(folder / "evaluation").glob("last_*"), *folder.glob("gallery.npz")}
    files -= {*(folder / "evaluation").glob("*.partial.npz")}  # of use only until the record is there
    return {file.name: content(file) for file in sorted(files) if file.suffix in (".json", ".npz", ".npy")}


# ---- the same in Python


def use_python() -> int:
    """Fit a model, evaluate it and save the evaluation; continue what an earlier call has begun."""
    partial.SECONDS_BETWEEN_WRITES = 0.0
    torch.manual_seed(0)
    x, y, model = torch.rand(40, 1, 4, 4), torch.arange(40) % 2, nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    small: dict[str, Any] = {
        "eps": 0.1,
        "epochs": 2,
        "batch_size": 20,
        "steps": 1,
        "validation": 10,
        "checkpoint_minutes": 0,
    }
    try:
        sihg.fit(model, (x, y), out=RUN, resume=(RUN / "config.toml").exists(), **small)
        found = sihg.evaluate(model, (x, y), eps=0.1, attacks="natural,pgd-2", points=True, resume=RUN)
        found.save(RUN)
    except SihgError as error:
        return _fail(error)
    return 0


def python_used() -> Result:
    files = [file for file in (RUN / "evaluation").iterdir() if not file.name.startswith(".")]
    found = {file.name: content(file) for file in files if not file.name.endswith(".partial.npz")}
    return {**trained(), **found}


# ---- one cell of a grid, in this process


def reproduce() -> int:
    partial.SECONDS_BETWEEN_WRITES = 0.0
    attacks = "natural,pgd-2"
    grid = build_grid("digits", methods="msi-hg", trials=1, attacks=attacks, samples=20, out=RUN, settings=SMALL)
    try:
        grid_run = GridRun(grid, jobs=1)
        for cell in grid_run.left:
            with grid.opened():
                grid_run._job(cell).prepare()
                train_cell(cell.folder, report=lambda _line: None)
                evaluate_cell(cell.folder, report=lambda _line: None)
    except SihgError as error:
        return _fail(error)
    return 0


def reproduced() -> Result:
    return {**trained(RUN / "msi-hg-s0"), **evaluated(RUN / "msi-hg-s0")}


# ---- solving


def solve() -> int:
    return _solve(lambda: compare("forsaken", "ssi-hg,gda", iterations=4, folder=RUN))


def resume_solve() -> int:
    def go_on() -> None:
        resumed = Comparison.resumed(RUN)
        for name in resumed.config.methods:
            resumed.run(name)
        resumed.summarise()

    return _solve(go_on) if (RUN / "config.json").exists() else solve()


def _solve(work: Callable[[], object]) -> int:
    comparison.SECONDS_BETWEEN_SAVES = 0.0
    try:
        work()
    except SihgError as error:
        return _fail(error)
    return 0


def solved() -> Result:
    files = [*RUN.glob("*.json"), *RUN.glob("*/*.json"), *RUN.glob("*/trajectory.csv")]
    return {str(file): content(file) for file in sorted(files)}


WORKLOADS = (
    Workload("train", train, resume_or(train), trained),
    Workload("train --memory-files", train_with_files, resume_or(train_with_files), trained),
    Workload("evaluate", evaluate, evaluate, evaluated, prepare=train),
    Workload("fit and evaluate", use_python, use_python, python_used),
    Workload("reproduce", reproduce, reproduce, reproduced),
    Workload("solve", solve, resume_solve, solved),
)


def _fail(error: SihgError) -> int:
    """Print an error as the command line does."""
    print(f"sihg: error: {error} [{error.code}]", file=sys.stderr)
    return 2


# ---- comparing


def content(file: Path) -> Any:
    """Return what a file says, without times and without the sum of itself."""
    if file.suffix == ".json":
        return scrub(json.loads(file.read_text(encoding="utf-8")))
    if file.suffix == ".npz":
        with np.load(file) as arrays:
            return {name: digest(arrays[name]) for name in arrays}
    if file.suffix == ".npy":
        return digest(np.load(file))
    return [line for line in file.read_text(encoding="utf-8").splitlines() if "sha256" not in line]


def scrub(value: Any) -> Any:
    """Remove what differs between two undisturbed runs from nested lists and dicts."""
    if isinstance(value, dict):
        return {key: scrub(item) for key, item in value.items() if key not in VARYING and "seconds" not in key}
    if isinstance(value, list):
        return [scrub(item) for item in value if not (isinstance(item, str) and item.startswith("sha256-of"))]
    return value


def digest(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def differences(found: Result, expected: Result) -> str:
    """Name the parts of a result that differ."""
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return ", ".join(names)


# ---- running


@dataclass(frozen=True)
class Bench:
    """A workload on trial: a folder as it is before the work, and how undisturbed work ends."""

    workload: Workload
    folder: Path
    good: Ended

    @property
    def expected(self) -> Result:
        """Return the result of undisturbed work."""
        return self.good.value  # type: ignore[no-any-return]

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """Copy the folder as it is before the work, for one trial."""
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as name:
            shutil.copytree(self.folder, name, dirs_exist_ok=True)
            yield Path(name)

    def fault_in_recovery(self, folder: Path) -> str | None:
        """Recover as a user would; return None if the result is that of undisturbed work, else what happened."""
        ended = run_in_child(lambda: None if self.workload.recover() else self.workload.result(), folder)
        if ended.value is None:
            return f"recovery {ended}"
        found = differences(ended.value, self.expected)
        return f"recovery gives another {found}" if found else None


@contextmanager
def workshop() -> Iterator[Path]:
    """Return a folder to try faults in, and prepare this process for many children."""
    torch.set_num_threads(1)
    for module in LATER:
        import_module(module)
    memory = Path("/dev/shm")  # where a sync takes no time
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home,
        pytest.MonkeyPatch.context() as m,
    ):
        m.setenv("XDG_STATE_HOME", str(Path(home, "state")))
        trust.user_key()  # made before calls are counted
        # Our copies stand for the folders themselves, so all marks are made with the inode of one folder.
        mark = trust._mark
        m.setattr(trust, "_mark", lambda key, _folder, settings: mark(key, Path(home), settings))
        yield Path(home)


@contextmanager
def benches() -> Iterator[list[Bench]]:
    """Prepare all workloads, and run each once without a fault."""
    with workshop() as home:
        yield [_bench(workload, home / f"{i}") for i, workload in enumerate(WORKLOADS)]


def _bench(workload: Workload, home: Path) -> Bench:
    before, after = home / "before", home / "after"
    before.mkdir(parents=True)
    _expect(run_in_child(lambda: not workload.prepare(), before))
    shutil.copytree(before, after)
    return Bench(workload, before, _expect(run_in_child(lambda: None if workload.work() else workload.result(), after)))


def _expect(ended: Ended) -> Ended:
    if not ended.value:
        raise AssertionError(f"undisturbed work {ended}\n{ended.traceback}")
    return ended
