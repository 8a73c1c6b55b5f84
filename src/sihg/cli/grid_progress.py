"""Show the progress of a grid: bars on a terminal, otherwise a plain line now and then."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from sihg.cli.terminal import SECONDS_BETWEEN_LINES, error_console, format_duration, one_line, printable, say
from sihg.experiments.launcher import Event, JobEnded, JobQueued, JobStarted
from sihg.experiments.time_left import TimeLeft


class GridProgress:
    """A display over all cells, of which some are done already; `is_done` tells whether a cell is, by its name."""

    def __init__(self, time_left: TimeLeft, cells: int, done: int, is_done: Callable[[str], bool]) -> None:
        self.time_left, self.cells, self.done, self.is_done = time_left, cells, done, is_done
        self._phases: dict[str, str] = {}  # of the cells that run
        self._queued: set[str] = set()  # cells that wait in the queue of a cluster
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        console = error_console()
        self._bars: Progress | None = None
        if console.is_terminal:
            name, note = (TextColumn(form, markup=False) for form in ("{task.description:14}", "{task.fields[note]}"))
            columns = (name, BarColumn(), TextColumn("{task.percentage:3.0f} %"), note)
            self._bars = Progress(*columns, console=console, transient=True)
            self._total = self._bars.add_task("all", total=1.0, note="")
            self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, event: Event) -> None:
        """Show that a cell is queued, has started, advanced or ended."""
        if isinstance(event, JobQueued):
            self._queued.add(event.name)
            self._print(f"{event.name}: job {event.number}")
        elif isinstance(event, JobStarted):
            self._queued.discard(event.name)
            self.time_left.start(event.name)
            self._phases[event.name] = "starting"
        elif isinstance(event, JobEnded):
            self._end(event)
        else:
            progress = event.progress
            self.time_left.advance(event.name, progress.phase, progress.done, progress.total)
            self._phases[event.name] = progress.phase
        if self._bars is not None:
            self._draw(self._bars)
        elif self._phases and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            running = [f"{name} {phase} {self.time_left.share_of(name):.0%}" for name, phase in self._phases.items()]
            self._print(f"{', '.join(running)}; {self._overall()}")

    def _end(self, event: JobEnded) -> None:
        self.time_left.end(event.name)
        del self._phases[event.name]
        is_done = self.is_done(event.name)
        self.done += is_done
        outcome = "done" if is_done else "stopped" if event.code == 130 else f"failed ({event.reason})"
        self._print(f"{event.name}: {outcome}, {event.seconds:.1f} s; {self.done} of {self.cells} are done")

    def _draw(self, bars: Progress) -> None:
        for name in [name for name in self._tasks if name not in self._phases]:
            bars.remove_task(self._tasks.pop(name))
        for name, phase in self._phases.items():
            if name not in self._tasks:
                self._tasks[name] = bars.add_task(one_line(name), total=1.0, note="")
            bars.update(self._tasks[name], completed=self.time_left.share_of(name), note=one_line(phase))
        bars.update(self._total, completed=self.time_left.share, note=self._overall())

    def _overall(self) -> str:
        queued = f"{len(self._queued)} in the queue, " if self._queued else ""
        return f"{self.done} of {self.cells} done, {queued}about {format_duration(self.time_left.seconds())} left"

    def _print(self, line: str) -> None:
        if self._bars is not None:
            self._bars.console.print(printable(line), highlight=False, markup=False, emoji=False)
        else:
            say(line)
