"""What the terminal shows: results, messages, tables, and progress: a bar, or a line every ten seconds elsewhere.

Commands print with `show` and `say`, never with `print`: names and paths may hold anything, and readers may go away.
"""

import io
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from sihg.errors import InputError
from sihg.launch import rank

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN_LINES = 10.0
DEFAULT_COLUMNS = 140  # of the screen, if the output is not a terminal
BORDER = 3  # columns that a border and its spaces take per cell, and once more
CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"  # all but tab and newline
REVERSING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of text
NOT_TEXT = "\ud800-\udfff"  # bytes of file names that are not UTF-8
_UNSAFE = re.compile(f"[{CONTROLS}{REVERSING}{NOT_TEXT}]")


def printable(text: object) -> str:
    r"""Escape what a terminal would obey instead of showing it; newlines and tabs stay.

    >>> print(printable("runs/\x1b[2J\u202e"))
    runs/\x1b[2J\u202e
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(text: object) -> str:
    """Escape newlines, too."""
    return printable(text).replace("\n", r"\n")


def show(text: object) -> None:
    """Print a result on standard output; of several processes of a run only the first prints.

    Raises:
        BrokenPipeError: Its reader has gone, which `main` turns into an exit code.
        InputError: It cannot be written, such as to a full disk.
    """
    if rank():
        return
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_undelivered()
        raise InputError("cannot-print", reason=error.strerror or error) from error


def say(text: object, *, by: int = 0) -> None:
    """Print a message on standard error; the work goes on if it cannot be delivered.

    Args:
        text: The message.
        by: Which of several processes of a run prints it.
    """
    if rank() != by:
        return
    with suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Let both streams take any character; write to nowhere if one is closed, so that no file gets its number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def drop_undelivered() -> None:
    """Drop output that cannot be delivered: Python would complain about it at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class _StandardError:
    """Standard error for rich: what cannot be written is dropped."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def error_console() -> "Console":
    """Return the console on which progress is drawn."""
    from rich.console import Console

    return Console(file=cast(IO[str], _StandardError()))


class Bar:
    """The progress of one task; `update` may be called after every step, however short."""

    def __init__(self, name: str, total: int, unit: str = "iterations") -> None:
        self.name, self.total, self.unit = one_line(name), total, unit
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = error_console()
        self._rich = None
        if console.is_terminal and not rank():
            columns = (
                TextColumn("{task.description:14}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
            )
            self._rich = Progress(*columns, console=console, transient=True)
            self._task = self._rich.add_task(self.name, total=total, note="")
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES

    def update(self, done: int, note: str) -> None:
        """Show the number done, and a note."""
        if self._rich is not None:
            self._rich.update(self._task, completed=done, note=one_line(note))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_LINES
            about = f", {note}" if note else ""
            say(f"{self.name}: {done} of {self.total} {self.unit}{about}")

    def __enter__(self) -> "Bar":
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._rich is not None:
            self._rich.stop()


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours.

    >>> format_duration(125)
    '2 min'
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def format_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table under its title; cells wrap on a narrow terminal, words are never cut."""
    from rich.box import ASCII, HEAVY_HEAD
    from rich.console import Console
    from rich.table import Table

    headings, rows = [one_line(text) for text in headings], [[one_line(cell) for cell in row] for row in rows]
    output = Console()
    screen = output.width if output.is_terminal else DEFAULT_COLUMNS
    table = Table(box=ASCII if output.options.ascii_only else HEAVY_HEAD)
    for i, (heading, width) in enumerate(zip(headings, _widths(headings, rows, screen), strict=True)):
        table.add_column(heading, justify="right" if i else "left", width=width)
    for row in rows:
        table.add_row(*row)
    needed = sum(column.width or 0 for column in table.columns) + BORDER * len(headings) + 1
    text = io.StringIO()  # rich's capture would write to standard output, too
    console = Console(file=text, width=max(screen, needed), color_system=None, emoji=False, markup=False)
    console.print(one_line(title), highlight=False, soft_wrap=True)
    console.print(table)
    return text.getvalue().rstrip()


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]], screen: int) -> list[int]:
    """Give each column the width of its longest word; then widen columns from the left while there is room."""
    from rich.cells import cell_len

    columns = list(zip(headings, *rows, strict=True))
    least = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    most = [max(map(cell_len, column)) for column in columns]
    spare = screen - sum(least) - BORDER * len(columns) - 1
    widths = []
    for low, high in zip(least, most, strict=True):
        more = max(0, min(spare, high - low))
        widths.append(low + more)
        spare -= more
    return widths
