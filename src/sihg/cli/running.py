"""What commands that train or evaluate share: flags, threads, warnings, loggers, and the output of a training."""

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.parse_numbers import count
from sihg.cli.terminal_table import format_table
from sihg.errors import InputError, NotFiniteError
from sihg.robust.training.events import EpochDone, Event, StepDone, WarningRaised
from sihg.store.schema import MetricsRow
from sihg.user_code import call_user_code, load_callable

if TYPE_CHECKING:
    from sihg.cli.progress import Bar
    from sihg.robust.training.config import Settings
    from sihg.robust.training.results import Trained
    from sihg.store.run_folder import RunFolder


def add_common(parser: argparse.ArgumentParser, threads: str = "threads to compute with") -> None:
    """Add the flags of every command that computes with data."""
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--threads", type=count, metavar="N", help=threads)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_logger(parser: argparse.ArgumentParser) -> None:
    """Add the flag for loggers of a user's own."""
    about = "a function or class of yours that is called with each event of training; repeat for several"
    parser.add_argument("--logger", action="append", default=[], metavar="PATH.py:NAME", help=about)


@contextmanager
def name_last_checkpoint(folder: "RunFolder") -> Iterator[None]:
    """Add the newest checkpoint, which is from before the failure, to a NotFiniteError."""
    try:
        yield
    except NotFiniteError as error:
        for path in sorted(folder.checkpoints.glob("last-*"))[-1:]:
            error.args = (f"{error}; the last good checkpoint is kept: {path}",)
        raise


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Compute with this number of threads inside the block (None: torch's choice)."""
    import torch

    if count == 0:
        raise InputError("threads-zero")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print each of our warnings as one line."""
    from sihg.robust.data import DataWarning
    from sihg.robust.training.weights import CheckpointWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.simplefilter("always", CheckpointWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr, flush=True)
        yield


class TrainingOutput:
    """Prints the events of a training on standard error, and passes them on to the loggers named.

    Args:
        loggers: Names such as path.py:Name, of functions that take an event, or of classes of such objects.
    """

    def __init__(self, loggers: Sequence[str] = ()) -> None:
        self._stack = ExitStack()
        self._bar: Bar | None = None
        self._loggers = {name: _load_logger(name) for name in loggers}

    def __enter__(self) -> "TrainingOutput":
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
        elif isinstance(event, EpochDone | WarningRaised):
            print(event, file=sys.stderr, flush=True)
        for name, logger in self._loggers.items():
            call_user_code("logger", name, logger, event)


def _load_logger(name: str) -> Callable[..., object]:
    found = load_callable("logger", name)
    made = call_user_code("logger", name, found) if isinstance(found, type) else found
    if not callable(made):
        raise InputError("logger-not-callable", name=name)
    return made


def print_result(trained: "Trained", folder: "RunFolder", settings: "Settings", *, as_json: bool) -> int:
    """Print how the run ended and the next command; return the exit code."""
    from sihg.store.tables import read_table

    rows = read_table(folder.metrics)
    last = MetricsRow.from_cells(rows[-1]) if rows else None
    run = shlex.quote(str(folder.path))
    if as_json:
        about = {"run": str(folder.path), "data": settings.data, "method": settings.method.name}
        ended = {"finished": trained.finished, "stopped": trained.stopped, "warnings": trained.warnings}
        cells = {key: float(value) if value else None for key, value in rows[-1].items()} if rows else None
        found = {"last": cells, "best": trained.best and trained.best.cells()}
        print(json.dumps({**about, **ended, **found}, indent=1))
    elif last is not None:
        print(_table(last, trained.best, settings, folder))
    print(f"next: sihg evaluate {run}" if trained.finished else f"to continue: sihg resume {run}", file=sys.stderr)
    return 0 if trained.finished else 130


def _table(last: MetricsRow, best: MetricsRow | None, settings: "Settings", folder: "RunFolder") -> str:
    row = [
        *(settings.method.name, f"{last.epoch}", _accuracies(last)),
        *("-" if best is None else f"{_accuracies(best)} (epoch {best.epoch})",),
        *(f"{last.passes:.1f}", f"{last.seconds:.1f}"),
    ]
    about = f"{settings.data}, eps {settings.eps:g}, held out natural / robust: {folder.path}"
    return format_table(about, ["method", "epochs", "last %", "best %", "passes", "seconds"], [row])


def _accuracies(row: MetricsRow) -> str:
    """Return natural and robust accuracy on the held-out set in percent."""
    if row.natural is None or row.robust is None:
        return "-"
    return f"{100 * row.natural:.1f} / {100 * row.robust:.1f}"
