"""Show the progress of an evaluation: a bar on a terminal, otherwise a line every ten seconds."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from sihg.cli.terminal import SECONDS_BETWEEN_LINES, error_console, format_duration, one_line, say
from sihg.launch import rank

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sihg.robust.evaluation.progress import EvaluationProgress

SECONDS_BETWEEN_DRAWINGS = 0.2


class EvaluationDisplay:
    """Shows the attack, samples left, the accuracy so far and the time left; call it with each EvaluationProgress.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefix = ""  # of the stage's name, such as that of the model
        self._clock = clock
        self._stage = ""
        self._begin = clock()
        self._next = self._begin + SECONDS_BETWEEN_LINES
        self._bar: tuple[Progress, TaskID] | None = None
        self._is_terminal = not rank() and error_console().is_terminal

    def __call__(self, event: "EvaluationProgress") -> None:
        """Show the event, unless the last one was shown just before."""
        now = self._clock()
        if not event.work:
            self._begin = now
        is_new = self.prefix + event.stage != self._stage
        if not (self._is_terminal and is_new) and now < self._next:
            return
        self._stage = self.prefix + event.stage
        self._next = now + (SECONDS_BETWEEN_DRAWINGS if self._is_terminal else SECONDS_BETWEEN_LINES)
        note = describe(event, now - self._begin)
        if self._is_terminal:
            self._draw(event, note)
        else:
            say(f"{one_line(self._stage)}: {note}")

    def _draw(self, event: "EvaluationProgress", note: str) -> None:
        bars, task = self._bar or self._open()
        left = event.work_left
        total = None if left is None else event.work + left  # None: how much is left is unknown
        bars.update(task, description=one_line(self._stage), completed=event.work, total=total, note=note)

    def _open(self) -> "tuple[Progress, TaskID]":
        from rich.progress import BarColumn, Progress, TextColumn

        name, note = (TextColumn(form, markup=False) for form in ("{task.description:14}", "{task.fields[note]}"))
        bars = Progress(name, BarColumn(), note, console=error_console(), transient=True)
        self._bar = bars, bars.add_task("", total=None, note="")
        bars.start()
        return self._bar

    def close(self) -> None:
        """Remove the bar that is shown."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe(event: "EvaluationProgress", seconds: float) -> str:
    """Return how far an evaluation is that has attacked for so many seconds."""
    if not event.total:  # a check, or an attack whose predecessors have broken everything
        return f"{event.passes + event.forwards} passes" if event.passes + event.forwards else "begins"
    note = f"{event.left} of {event.total} samples left, accuracy at most {100 * event.accuracy:.2f} %"
    if event.work and event.work_left is not None:
        note += f", about {format_duration(seconds * event.work_left / event.work)} left"
    return note
