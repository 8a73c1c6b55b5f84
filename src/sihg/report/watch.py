"""A report that follows runs while they train."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sihg.errors import InputError
from sihg.report.read.runs import run_folders
from sihg.report.training_report import report_training
from sihg.store.run_folder import GRID, RunFolder

State = dict[Path, tuple[int, int]]


def follow(
    folders: Sequence[Path],
    seconds: float,
    tell: Callable[[str], object],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Report on each folder again whenever its runs have changed, until interrupted; then once more, for good.

    While it goes on, the pages load themselves again. What cannot be read is told, and tried when it has changed.
    """
    seen: dict[Path, State] = {}
    try:
        while True:
            for folder in folders:
                now = state(folder)
                if now != seen.get(folder, {}):  # as long as no run has begun, there is nothing to draw
                    seen[folder] = now
                    _report(folder, seconds, tell)
            wait(seconds)
    except KeyboardInterrupt:
        for folder in seen:
            _report(folder, None, tell)


def state(folder: Path) -> State:
    """When the files that a report reads were last written, and their sizes."""
    found: State = {}
    for path in _read(folder):
        try:
            about = path.stat()
        except FileNotFoundError:
            continue
        found[path] = (about.st_mtime_ns, about.st_size)
    return found


def _read(folder: Path) -> Iterator[Path]:
    try:
        runs = run_folders(folder)
    except InputError:
        yield folder / GRID  # the report says what is wrong with it
        return
    for run in map(RunFolder, runs):
        yield from (run.config, run.metrics, run.log, run.memory_table, run.environment, run.gallery)
        yield from run.evaluation.glob("*.json")


def _report(folder: Path, refresh: float | None, tell: Callable[[str], object]) -> None:
    try:
        report_training(folder, refresh=refresh)
    except (InputError, OSError) as error:
        tell(f"not drawn now: {error}")
