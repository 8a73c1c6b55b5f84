"""Run one cell of a grid: train the run of its config.toml, or resume it, then evaluate it as grid.toml says.

`python -m sihg.experiments.cell FOLDER [DATA_DIR]` is the process of a cell. It writes `Progress` to standard output,
one JSON object per line, and everything else to standard error. It stops at a safe point when its input ends.
"""

import _thread
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec

from sihg.errors import SihgError
from sihg.experiments.launcher import Progress
from sihg.interrupt import interrupted_at_once
from sihg.robust.evaluation.evaluate_run import EvaluationRequest, evaluate_run
from sihg.robust.evaluation.progress import EvaluationProgress
from sihg.robust.training.events import EpochDone, Event, StepDone, WarningRaised
from sihg.robust.training.fit import resume_run
from sihg.store.run_folder import GRID, InUseError, RunFolder, locked
from sihg.store.schema import read_grid_config

SECONDS_BETWEEN_LINES = 0.2
PATIENCE_SECONDS = 600.0  # for a process of an earlier grid that still writes its checkpoint

Report = Callable[[Progress | str], object]  # receives progress, and lines for the log


def train_cell(
    folder: str | Path, *, data_dir: Path | None = None, trust: bool = False, report: Report = print
) -> bool:
    """Train the run in a folder that has a config.toml, from its newest checkpoint or from the start.

    Returns:
        Whether it came to the last epoch; False after Ctrl-C.
    """
    run = RunFolder.open(folder)
    has_begun = False

    def on_event(event: Event) -> None:
        nonlocal has_begun
        if isinstance(event, StepDone):
            if not has_begun:
                report(f"{run.config}: from step {event.step} of {event.steps}")
                has_begun = True
            report(Progress("training", event.step, event.steps))
        elif isinstance(event, EpochDone | WarningRaised):
            report(str(event))

    return resume_run(folder, data_dir=data_dir, trust=trust, on_event=on_event).finished


def evaluate_cell(
    folder: str | Path, *, data_dir: Path | None = None, trust: bool = False, report: Report = print
) -> None:
    """Attack the last checkpoint of the run in a folder, from where an earlier attempt was interrupted."""
    run = RunFolder.open(folder)
    grid = read_grid_config(run.path.parent / GRID)
    samples = None if grid.test_samples == "all" else grid.test_samples
    request = EvaluationRequest(grid.attacks, samples=samples, trust=trust)

    def progress(event: EvaluationProgress) -> None:
        total = max(1, event.total)  # a check has none: its share of the time is not estimated
        reached = event.done if event.done == event.total else min(total - 1, int(event.stage_share * total))
        report(Progress(event.stage, max(event.done, reached), total))

    with locked(run.path):
        report(str(evaluate_run(run.path, request, data_dir=data_dir, threads=grid.threads, progress=progress)))


def main(folder: Path, data_dir: Path | None = None) -> int:
    """Run a cell as a process; return its exit code."""
    stopping = threading.Event()
    threading.Thread(target=_stop_at_end_of_input, args=(stopping,), daemon=True).start()
    report = _Reporter(os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8"))
    os.dup2(2, 1)  # what others print goes to the log
    warnings.showwarning = lambda message, *_, **__: report(f"warning: {message}")
    try:
        with interrupted_at_once():
            _wait_until_free(folder)
            # The grid has compared the settings with those of its user, so code in them is the user's own.
            if train_cell(folder, data_dir=data_dir, trust=True, report=report) and not stopping.is_set():
                evaluate_cell(folder, data_dir=data_dir, trust=True, report=report)
                return 0
    except SihgError as error:
        report(f"sihg: error: {error}")
        return 2
    except KeyboardInterrupt:
        pass
    report("stopped")
    return 130


def _stop_at_end_of_input(stopping: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    stopping.set()
    _thread.interrupt_main()


def _wait_until_free(folder: Path) -> None:
    """Wait for a process of an earlier grid to end; if it does not, training says that the folder is in use."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with locked(folder):
                return
        except InUseError:
            time.sleep(SECONDS_BETWEEN_LINES)


class _Reporter:
    """Writes progress as JSON, a few lines per second at most, and text to standard error."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.next_line, self.phase = out, 0.0, ""

    def __call__(self, message: Progress | str) -> None:
        if isinstance(message, str):
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()
        elif message.phase != self.phase or message.done == message.total or time.monotonic() >= self.next_line:
            self.phase, self.next_line = message.phase, time.monotonic() + SECONDS_BETWEEN_LINES
            with suppress(BrokenPipeError):  # the grid is gone, so the input has ended too
                self.out.write(msgspec.json.encode(message).decode() + "\n")


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
