"""What a training shows: a line every ten seconds, or on a terminal a bar that is redrawn a few times per second."""

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from sihg.cli import training_display
from sihg.cli.training_display import WIDTH, TrainingDisplay, sparkline
from sihg.store.schema import MetricsRow


def row(step: int, **changes: Any) -> MetricsRow:
    values = {"loss": 2.0 / step, "accuracy": step / 100, "passes": 0.5 * step, "seconds": 0.25 * step}
    return MetricsRow(epoch=1, step=step, **(values | changes))


class Clock:
    """Tells a time that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert sparkline([3, 2, 1]) == "█▅▁"
    assert sparkline([1, 1]) == "▁▁"
    assert sparkline([]) == ""


def test_without_a_terminal_a_line_is_printed_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with TrainingDisplay(100, samples=1000) as display:
        for step in range(1, 61):
            clock.now = 0.5 * step
            display.update(step, row(step))
    lines = capsys.readouterr().err.splitlines()
    # from the second step on: 1000 samples with 0.5 passes each per quarter of a second; half a second per step
    assert lines == [
        "training: 20 of 100 steps, loss 0.100, accuracy 20.0 %, 2,000 passes/s, 40 s left",
        "training: 40 of 100 steps, loss 0.050, accuracy 40.0 %, 2,000 passes/s, 30 s left",
        "training: 60 of 100 steps, loss 0.033, accuracy 60.0 %, 2,000 passes/s, 20 s left",
    ]


def test_what_is_not_known_is_not_shown() -> None:
    display = TrainingDisplay(100)
    assert display.describe(sparklines=True) == ""
    display.update(1, row(1, loss=None, accuracy=None))
    assert display.describe(sparklines=True) == ""


def test_on_a_terminal_steps_only_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(training_display, "error_console", lambda: console)
    drawn: list[int] = []

    def draw(values: Sequence[float]) -> str:
        drawn.append(len(values))
        return "▁█"

    monkeypatch.setattr(training_display, "sparkline", draw)
    display = TrainingDisplay(1000, samples=10)
    for step in range(1, 1001):
        display.update(step, row(step))
    assert drawn == []  # drawing belongs to the screen's refreshes
    with display:
        pass
    assert max(drawn) == WIDTH
    assert "loss 0.002 ▁█ | accuracy 1000.0 % ▁█ | 20 passes/s" in screen.getvalue()
