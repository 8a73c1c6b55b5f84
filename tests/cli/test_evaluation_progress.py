"""The display of an evaluation: a line now and then, or a bar on a terminal, by a clock that is given."""

import io
import re

import pytest
from rich.console import Console

from sihg.cli import evaluation_progress
from sihg.cli.evaluation_progress import SECONDS_BETWEEN_DRAWINGS, EvaluationDisplay, describe
from sihg.cli.terminal import SECONDS_BETWEEN_LINES
from sihg.robust.evaluation.progress import EvaluationProgress


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def event(
    stage: str = "pgd-20", work: float = 0.0, work_left: float | None = 300.0, **changes: int
) -> EvaluationProgress:
    values = {"done": 0, "total": 200, "left": 120, "resumed": 0, "unbroken": 150, "samples": 200, "forwards": 0}
    values |= {"passes": int(work)} | changes
    return EvaluationProgress(stage=stage, work=work, stage_left=None, work_left=work_left, **values)


def test_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with EvaluationDisplay(clock) as display:
        display(event())
        for second in range(1, 25):
            clock.now = float(second)
            display(event(work=10.0 * second, unbroken=150 - second, left=120 - second))
    assert capsys.readouterr().err.splitlines() == [
        "pgd-20: 110 of 200 samples left, accuracy at most 70.00 %, about 30 s left",
        "pgd-20: 100 of 200 samples left, accuracy at most 65.00 %, about 30 s left",
    ]
    assert SECONDS_BETWEEN_LINES == 10


def test_the_time_left_is_of_the_work_since_the_attacks_began() -> None:
    """Neither checks before them nor verdicts that were resumed count."""
    assert describe(event(work=50.0, resumed=100, passes=9999), 10.0).endswith("about 60 s left")
    assert describe(event(work=50.0, work_left=None), 10.0).endswith("75.00 %")
    assert describe(event(), 0.0).endswith("75.00 %")
    assert describe(event("checks: steps", 80.0, None, total=0), 10.0) == "80 passes"


def test_a_second_evaluation_has_a_time_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = EvaluationDisplay(clock)
    display.prefix = "one: "
    display(event())
    clock.now = 1000.0
    display(event(work=10.0))
    display.prefix = "two: "
    display(event())
    clock.now = 1010.0
    display(event(work=100.0))
    assert capsys.readouterr().err.splitlines()[-1].startswith("two: pgd-20: 120 of 200 samples left")
    assert describe(event(work=100.0), 10.0).endswith("about 30 s left")


def test_a_bar_moves_with_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)
    monkeypatch.setattr(evaluation_progress, "error_console", lambda: console)
    monkeypatch.setattr("rich.progress.Live.start", lambda *_, **__: None)  # no thread that draws by itself
    clock = Clock()
    with EvaluationDisplay(clock) as display:
        seen = []
        display(event("natural"))
        for call in range(1, 101):
            clock.now = call / 100
            display(event("pgd-20 [red]" if call > 50 else "natural", work=float(call), left=120 - call))
            assert display._bar is not None
            (task,) = display._bar[0].tasks
            seen.append((task.completed, task.fields["note"]))
        assert task.description == "pgd-20 [red]"
        assert task.total == seen[-1][0] + 300
    drawn = [completed for completed, _ in seen]
    assert drawn == sorted(drawn)
    assert len(set(drawn)) in range(int(1 / SECONDS_BETWEEN_DRAWINGS), int(1 / SECONDS_BETWEEN_DRAWINGS) + 3)
    assert re.fullmatch(r"\d+ of 200 samples left, accuracy at most 75.00 %, about \d s left", seen[-1][1])


def test_only_the_first_process_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    clock = Clock()
    display = EvaluationDisplay(clock)
    clock.now = 60.0
    display(event(work=5.0))
    assert capsys.readouterr().err == ""
