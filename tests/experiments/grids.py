"""A small grid on digits: its command line, a launcher that runs cells in this process, and what its cells computed."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sihg.cli.main import main
from sihg.errors import SihgError
from sihg.experiments.cell import evaluate_cell, train_cell
from sihg.experiments.launcher import Event, Job, JobEnded, JobStarted, Launcher, Progress
from tests.robust.small import records

SETTINGS = {"epochs": 2, "samples": 120, "validation": 20, "steps": 2, "width": "1/4"}
TINY = (
    *("--methods", "pgd,msi-hg", "--trials", "2", "--attacks", "natural,pgd-5", "--samples", "60"),
    *(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")),
)
CELLS = ["pgd-s0", "msi-hg-s0", "pgd-s1", "msi-hg-s1"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


class CellsHere:
    """Runs cells in this process, one after another, which is quicker."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.lines: list[str] = []  # of all logs
        self.on_step: Callable[[], object] = lambda: None

        def run_jobs(launcher: Launcher, jobs: Sequence[Job]) -> Iterator[Event]:
            for job in jobs:
                self.ran.append(job.name)
                yield JobStarted(job.name)
                yield (ended := self._run(job))
                launcher.interrupted = ended.code == 130
                if launcher.interrupted:
                    return

        patch.setattr(Launcher, "run", run_jobs)

    def _run(self, job: Job) -> JobEnded:
        try:
            job.prepare()
            folder = Path(job.command[3])
            if not train_cell(folder, report=self._report):
                return JobEnded(job.name, 130, 1.0, "")
            evaluate_cell(folder, report=self._report)
        except SihgError as error:
            return JobEnded(job.name, 2, 1.0, str(error))
        return JobEnded(job.name, 0, 1.0, "")

    def _report(self, message: Progress | str) -> None:
        if isinstance(message, str):
            self.lines.append(message)
        elif message.phase == "training":
            self.on_step()


def ignore(_: object) -> None:
    pass


def results(out: Path) -> dict[str, Any]:
    """All that the cells of a folder have computed, without the seconds."""
    found: dict[str, Any] = {}
    for cell in sorted(path.parent for path in out.glob("*/config.toml")):
        (record,) = cell.glob("evaluation/*.json")
        attacks = json.loads(record.read_text())["attacks"]
        last = max(cell.glob("checkpoints/last-*"))
        found[cell.name] = {
            **records(cell),
            "config": (cell / "config.toml").read_bytes(),
            "weights": (last / "weights.safetensors").read_bytes(),
            "attacks": [{key: value for key, value in row.items() if key != "seconds"} for row in attacks],
        }
    return found


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two grids computed the same, bit by bit; an assertion on the dicts would print megabytes."""
    return found.keys() == expected.keys() and all(found[cell] == expected[cell] for cell in expected)
