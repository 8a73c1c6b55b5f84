"""What the terminal shows: tables, and progress on standard error: a bar, or a line every ten seconds elsewhere."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType

SECONDS_BETWEEN_LINES = 10.0
DEFAULT_COLUMNS = 140  # of the screen, if the output is not a terminal
BORDER = 3  # columns that a border and its spaces take per cell, and once more


class Bar:
    """The progress of one task; `update` may be called after every step, however short."""

    def __init__(self, name: str, total: int, unit: str = "iterations") -> None:
        self.name, self.total, self.unit = name, total, unit
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._rich = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description:14}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._rich = Progress(*columns, console=console, transient=True)
            self._task = self._rich.add_task(name, total=total, note="")
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES

    def update(self, done: int, note: str) -> None:
        """Show the number done, and a note."""
        if self._rich is not None:
            self._rich.update(self._task, completed=done, note=note)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_LINES
            about = f", {note}" if note else ""
            print(f"{self.name}: {done} of {self.total} {self.unit}{about}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Bar":
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._rich is not None:
            self._rich.stop()


class Bars:
    """The bars of an evaluation, one per attack; call it with an attack, the samples done, and of how many."""

    def __init__(self) -> None:
        self.prefix = ""  # of the names, such as that of the model
        self._bar: Bar | None = None
        self._name = ""

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show how far an attack is; the first call for an attack only opens its bar."""
        if self._bar is None or self._name != self.prefix + name:
            self.close()
            self._name = self.prefix + name
            self._bar = Bar(self._name, total, "samples").__enter__()
        else:
            self._bar.update(done, "")

    def close(self) -> None:
        """Remove the bar that is shown."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def format_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table under its title; cells wrap on a narrow terminal, words are never cut."""
    from rich.console import Console
    from rich.table import Table

    screen = Console().width if Console().is_terminal else DEFAULT_COLUMNS
    table = Table()
    for i, (heading, width) in enumerate(zip(headings, _widths(headings, rows, screen), strict=True)):
        table.add_column(heading, justify="right" if i else "left", width=width)
    for row in rows:
        table.add_row(*row)
    needed = sum(column.width or 0 for column in table.columns) + BORDER * len(headings) + 1
    console = Console(width=max(screen, needed), emoji=False)
    with console.capture() as capture:
        console.print(title, highlight=False, markup=False, soft_wrap=True)
        console.print(table, markup=False)
    return capture.get().rstrip()


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
