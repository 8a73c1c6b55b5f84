"""What the commands that train or evaluate share: options, threads, warnings, progress, how a run ended."""

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.parse_numbers import count
from sihg.cli.terminal_table import drawn
from sihg.errors import InputError
from sihg.robust.training.events import EpochDone, Event, StepDone, WarningRaised
from sihg.store.schema import MetricsRow

if TYPE_CHECKING:
    from sihg.robust.training.config import Settings
    from sihg.robust.training.results import Trained
    from sihg.store.run_folder import RunFolder


def add_common(parser: argparse.ArgumentParser, threads: str = "threads to compute with") -> None:
    """What every command that computes with data takes."""
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--threads", type=count, metavar="N", help=threads)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


@contextmanager
def last_good(folder: "RunFolder") -> Iterator[None]:
    """Tell, with training that has left the numbers, where it was still well."""
    from sihg.errors import NotFiniteError

    try:
        yield
    except NotFiniteError as error:
        kept = "".join(
            f"; the last good checkpoint is kept: {path}" for path in sorted(folder.checkpoints.glob("last-*"))[-1:]
        )
        raise NotFiniteError(f"{error}{kept}") from error


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads."""
    import torch

    if count == 0:
        raise InputError("--threads must be at least 1, got 0: leave it out for torch's own choice")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def showing_warnings() -> Iterator[None]:
    """Print our warnings as one line each."""
    from sihg.robust.data import DataWarning
    from sihg.robust.training.weights import CheckpointWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.simplefilter("always", CheckpointWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr, flush=True)
        yield


class Telling:
    """Hears of steps, epochs and warnings, and says them on standard error."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> "Telling":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, event: Event) -> None:
        """Print an event."""
        if isinstance(event, StepDone):
            if self._bar is None:
                from sihg.cli.progress import Bar

                self._bar = self._stack.enter_context(Bar("training", event.steps, "steps"))
            self._bar.update(event.step, f"loss {event.row.loss:.3f}")
        elif isinstance(event, EpochDone):
            print(_epoch_line(event.row), file=sys.stderr, flush=True)
        elif isinstance(event, WarningRaised):
            print(f"warning: {event.text}", file=sys.stderr, flush=True)


def _epoch_line(row: MetricsRow) -> str:
    both = None if row.robust is None or row.natural is None else (row.natural, row.robust)
    held = "" if both is None else f", held out {_percent(both[0])} / {_percent(both[1])} robust"
    return f"epoch {row.epoch}: loss {row.loss:.3f}{held}, {row.seconds:.1f} s, {row.passes:.1f} passes"


def show(trained: "Trained", folder: "RunFolder", settings: "Settings", *, as_json: bool) -> int:
    """Print how the run ended and what to do next; give the exit code."""
    from sihg.store.tables import read_table

    rows = read_table(folder.metrics)
    last = {key: float(value) if value else None for key, value in rows[-1].items()} if rows else None
    best = None if trained.best is None else trained.best.cells()
    run = shlex.quote(str(folder.path))
    if as_json:
        about = {"run": str(folder.path), "data": settings.data, "method": settings.method.name}
        ended = {"finished": trained.finished, "stopped": trained.stopped, "warnings": trained.warnings}
        print(json.dumps({**about, **ended, "last": last, "best": best}, indent=1))
    elif last is not None:
        print(_table(last, best, settings, folder))
    print(f"next: sihg evaluate {run}" if trained.finished else f"to go on: sihg resume {run}", file=sys.stderr)
    return 0 if trained.finished else 130


def _table(last: dict[str, Any], best: dict[str, Any] | None, settings: "Settings", folder: "RunFolder") -> str:
    row = [
        *(settings.method.name, f"{last['epoch']:.0f}", _both(last)),
        *("-" if best is None else f"{_both(best)} (epoch {best['epoch']})",),
        *(f"{last['passes']:.1f}", f"{last['seconds']:.1f}"),
    ]
    about = f"{settings.data}, eps {settings.eps:g}, held out natural / robust: {folder.path}"
    return drawn(about, ["method", "epochs", "last %", "best %", "passes", "seconds"], [row])


def _both(row: dict[str, Any]) -> str:
    return "-" if row["robust"] is None else f"{100 * row['natural']:.1f} / {100 * row['robust']:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
