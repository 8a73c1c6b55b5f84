"""Show progress on standard error: a bar on a terminal, a line every ten seconds elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class Bar:
    """The progress of one task; `update` may be called after every step, however short."""

    def __init__(self, name: str, total: int, unit: str = "iterations") -> None:
        self.name, self.total, self.unit = name, total, unit
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
