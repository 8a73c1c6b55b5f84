"""Draw a report again while its runs train."""

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path

from sihg.errors import InputError
from sihg.report.read.runs import result_kind, run_folders
from sihg.report.training_report import report_training
from sihg.store.run_folder import GRID, RunFolder

FileStates = dict[Path, tuple[int, int]]  # when a file was last written, and its size


def check_watch(folders: Sequence[Path], seconds: float) -> None:
    """Raise InputError unless the folders can be watched every so many seconds; runs may begin later."""
    if not 1 <= seconds < inf:
        raise InputError("watch-seconds", seconds=seconds)
    for folder in folders:
        if any((folder / name).is_file() for name in ("summary.json", "profile.json")):
            raise InputError("watch-solve", folder=folder)
        if not folder.is_dir():
            result_kind(folder)  # raises


def follow(
    folders: Sequence[Path],
    seconds: float,
    on_message: Callable[[str], object],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Report on each folder whenever its runs have changed, until Ctrl-C; then once more.

    Args:
        folders: Folders of runs. A folder without runs is watched until one begins.
        seconds: The time between two looks. Until the end, pages also load themselves again after it.
        on_message: Receives why a page could not be drawn. It is tried again when a file has changed.
        wait: Waits for so many seconds.
    """
    seen: dict[Path, FileStates] = {}
    try:
        while True:
            for folder in folders:
                now = file_states(folder)
                if now != seen.get(folder, {}):
                    seen[folder] = now
                    _report(folder, seconds, on_message)
            wait(seconds)
    except KeyboardInterrupt:
        for folder in seen:
            _report(folder, None, on_message)


def file_states(folder: Path) -> FileStates:
    """Return the states of the files that a report reads."""
    found: FileStates = {}
    for path in _report_files(folder):
        try:
            about = path.stat()
        except FileNotFoundError:
            continue
        found[path] = (about.st_mtime_ns, about.st_size)
    return found


def _report_files(folder: Path) -> Iterator[Path]:
    try:
        runs = run_folders(folder)
    except InputError:
        yield folder / GRID  # the report says what is wrong with it
        return
    for run in map(RunFolder, runs):
        yield from (run.config, run.metrics, run.log, run.memory_table, run.environment, run.gallery)
        yield from run.evaluation.glob("*.json")


def _report(folder: Path, refresh: float | None, on_message: Callable[[str], object]) -> None:
    try:
        report_training(folder, refresh=refresh)
    except (InputError, OSError) as error:
        on_message(f"not drawn now: {error}")
