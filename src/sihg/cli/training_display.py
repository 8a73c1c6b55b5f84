"""Show a training while it runs: a bar with loss, accuracy, speed and the time left, or a line every ten seconds."""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sihg.cli.terminal import SECONDS_BETWEEN_LINES, error_console, format_duration, say
from sihg.launch import rank
from sihg.store.schema import MetricsRow

if TYPE_CHECKING:
    from rich.console import RenderableType

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 20  # of a sparkline: values over the whole run
REFRESHES = 4  # per second


def sparkline(values: Sequence[float]) -> str:
    """Draw values as bars, from the lowest to the highest.

    >>> sparkline([0, 1, 2, 7])
    '▁▂▃█'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


class TrainingDisplay:
    """The progress of a training; `update` may be called after every step, and only keeps what it is given.

    Args:
        steps: The steps of the whole run.
        samples: The training samples, to tell passes per second; 0 if unknown.
    """

    def __init__(self, steps: int, samples: int = 0) -> None:
        self.steps, self.samples = steps, samples
        self.step = 0
        self.row: MetricsRow | None = None
        self._loss: dict[int, float] = {}  # the newest value in each part of the run
        self._accuracy: dict[int, float] = {}
        self._begin: tuple[float, int, MetricsRow] | None = None  # the time at the first step seen here
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self._live = None
        console = error_console()
        if console.is_terminal and not rank():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            class Live(Progress):
                """A bar, and below it the line of the display."""

                def get_renderables(live) -> "Iterable[RenderableType]":  # noqa: N805
                    """Draw both, only as often as the screen is refreshed."""
                    from rich.text import Text

                    for task in live.task_ids:
                        live.update(task, completed=self.step)
                    yield live.make_tasks_table(live.tasks)
                    yield Text(self.describe(sparklines=not console.options.ascii_only), no_wrap=True)

            columns = (TextColumn("training"), BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("steps"))
            self._live = Live(
                *columns, console=console, transient=True, refresh_per_second=REFRESHES, expand=True, auto_refresh=True
            )
            self._live.add_task("", total=steps)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, step: int, row: MetricsRow) -> None:
        """Keep the metrics of a step; print a line if there is no screen and it is time."""
        self.step, self.row = step, row
        part = (WIDTH * (step - 1)) // max(1, self.steps)
        if row.loss is not None:
            self._loss[part] = row.loss
        if row.accuracy is not None:
            self._accuracy[part] = row.accuracy
        if self._begin is None:
            self._begin = (time.monotonic(), step, row)
        if self._live is None and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            say(f"training: {step} of {self.steps} steps, {self.describe(sparklines=False)}")

    def describe(self, *, sparklines: bool) -> str:
        """Return loss, accuracy, passes per second and the time left in a line."""
        row = self.row
        if row is None or self._begin is None:
            return ""
        parts = []
        if row.loss is not None:
            parts.append(f"loss {row.loss:.3f}" + (f" {sparkline([*self._loss.values()])}" if sparklines else ""))
        if row.accuracy is not None:
            drawn = f" {sparkline([*self._accuracy.values()])}" if sparklines else ""
            parts.append(f"accuracy {100 * row.accuracy:.1f} %{drawn}")
        begin, first, before = self._begin
        if self.samples and row.passes and row.seconds and row.seconds > (before.seconds or 0.0):
            rate = self.samples * (row.passes - (before.passes or 0.0)) / (row.seconds - (before.seconds or 0.0))
            parts.append(f"{rate:,.0f} passes/s")
        if self.step > first:
            left = (time.monotonic() - begin) / (self.step - first) * (self.steps - self.step)
            parts.append(f"{format_duration(left)} left")
        return (" | " if sparklines else ", ").join(parts)
