"""Progress over a grid: on a terminal a line for each running cell and one for all, elsewhere a plain line at times."""

import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from sihg.cli.progress import SECONDS_BETWEEN_LINES
from sihg.experiments.launcher import Ended
from sihg.experiments.time_left import Outlook


class GridProgress:
    """Hears what the processes of the cells tell, and shows it; keeps how each cell ended."""

    def __init__(self, outlook: Outlook, cells: int, done: int, is_done: Callable[[str], bool]) -> None:
        self.outlook, self.cells, self.finished, self.is_done = outlook, cells, done, is_done
        self.ended: dict[str, Ended] = {}
        self._phase: dict[str, str] = {}  # of each running cell
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES
        console = Console(stderr=True)
        self._rich: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description:14}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
            self._rich = Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True)
            self._total = self._rich.add_task("all", total=1.0, note="")
            self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "GridProgress":
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def hear(self, cell: str, about: dict[str, Any]) -> None:
        """A cell begins, is so far, or has ended."""
        if "begin" in about:
            self.outlook.begin(cell)
            self._phase[cell] = "starting"
        elif "end" in about:
            self._end(cell, about["end"])
        else:
            self.outlook.hear(cell, about["name"], about["done"], about["of"])
            self._phase[cell] = about["name"]
        if self._rich is not None:
            self._draw(self._rich)
        elif self._phase and time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_LINES
            running = [f"{name} {phase} {self.outlook.share_of(name):.0%}" for name, phase in self._phase.items()]
            self._say(f"{', '.join(running)}; {self._all()}")

    def _end(self, cell: str, ended: Ended) -> None:
        self.outlook.end(cell)
        self.ended[cell] = ended
        del self._phase[cell]
        done = self.is_done(cell)  # also where its figures are doubted, which is an error of `sihg evaluate`
        self.finished += done
        how = "done" if done else "stopped" if ended.code == 130 else f"failed ({ended.words})"
        self._say(f"{cell}: {how}, {ended.seconds:.1f} s; {self.finished} of {self.cells} are done")

    def _draw(self, rich: Progress) -> None:
        for name in [name for name in self._tasks if name not in self._phase]:
            rich.remove_task(self._tasks.pop(name))
        for name, phase in self._phase.items():
            if name not in self._tasks:
                self._tasks[name] = rich.add_task(name, total=1.0, note="")
            rich.update(self._tasks[name], completed=self.outlook.share_of(name), note=phase)
        rich.update(self._total, completed=self.outlook.share, note=self._all())

    def _all(self) -> str:
        return f"{self.finished} of {self.cells} done, about {duration(self.outlook.left())} left"

    def _say(self, line: str) -> None:
        if self._rich is not None:
            self._rich.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
