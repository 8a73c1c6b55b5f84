"""The display over a grid: plain lines, or a bar per running cell on a terminal."""

import io

import pytest
from rich.console import Console

from sihg.cli import grid_progress
from sihg.cli.grid_progress import GridProgress
from sihg.cli.terminal import format_duration
from sihg.experiments.launcher import JobEnded, JobProgressed, JobQueued, JobStarted, Progress
from sihg.experiments.time_left import TimeLeft

COSTS = {name: {"training": 60.0, "pgd-20": 20.0} for name in ("pgd-s0", "msi-hg-s0", "pgd-s1")}


def is_done(cell: str) -> bool:
    return cell.startswith("pgd")


def show_all(progress: GridProgress) -> None:
    """Show two cells: one trains and is done, one fails."""
    progress.show(JobStarted("pgd-s0"))
    progress.show(JobStarted("msi-hg-s0"))
    progress.show(JobProgressed("pgd-s0", Progress("training", 30, 60)))
    progress.show(JobEnded("msi-hg-s0", 2, 1.5, "sihg: error: a reason"))
    progress.show(JobEnded("pgd-s0", 0, 61.04, ""))


def test_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(grid_progress, "SECONDS_BETWEEN_LINES", 0.0)
    with GridProgress(TimeLeft(COSTS, 2, lambda: 0.0), 4, 1, is_done) as progress:
        show_all(progress)
    lines = capsys.readouterr().err.splitlines()
    assert lines[2].startswith("pgd-s0 training 38%, msi-hg-s0 starting 0%; 1 of 4 done, about ")
    assert lines[3] == "msi-hg-s0: failed (sihg: error: a reason), 1.5 s; 1 of 4 are done"
    assert lines[5] == "pgd-s0: done, 61.0 s; 2 of 4 are done"


def test_a_cell_with_failed_checks_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with GridProgress(TimeLeft(COSTS, 2, lambda: 0.0), 4, 1, is_done) as progress:
        progress.show(JobStarted("pgd-s0"))
        progress.show(JobEnded("pgd-s0", 2, 3.0, "error: an attack left the ball"))
    assert "pgd-s0: done, 3.0 s; 2 of 4 are done" in capsys.readouterr().err


def test_few_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with GridProgress(TimeLeft(COSTS, 2), 4, 1, is_done) as progress:
        progress.show(JobStarted("pgd-s0"))
        for done in range(60):
            progress.show(JobProgressed("pgd-s0", Progress("training", done, 60)))
    assert capsys.readouterr().err == ""


def test_jobs_in_the_queue_of_a_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(grid_progress, "SECONDS_BETWEEN_LINES", 0.0)
    with GridProgress(TimeLeft(COSTS, 2, lambda: 0.0), 4, 1, is_done) as progress:
        for event in (JobQueued("pgd-s0", "7_0"), JobQueued("pgd-s1", "7_1"), JobStarted("pgd-s0")):
            progress.show(event)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["pgd-s0: job 7_0", "pgd-s1: job 7_1"]
    assert lines[2].startswith("pgd-s0 starting 0%; 1 of 4 done, 1 in the queue, about ")


def test_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(grid_progress, "error_console", lambda: Console(file=out, force_terminal=True, width=100))
    with GridProgress(TimeLeft(COSTS, 2), 4, 1, is_done) as progress:
        progress.show(JobStarted("pgd-s0"))
        progress.show(JobProgressed("pgd-s0", Progress("training", 30, 60)))
        assert progress._bars is not None
        progress._bars.refresh()
        shown = out.getvalue()
        progress.show(JobEnded("pgd-s0", 0, 61.0, ""))
    assert "pgd-s0" in shown
    assert "38 %" in shown
    assert "1 of 4 done, about" in shown
    assert "pgd-s0: done, 61.0 s; 2 of 4 are done" in out.getvalue()


def test_durations_in_seconds_minutes_and_hours() -> None:
    assert [format_duration(s) for s in (0.4, 99, 125, 5000, 7200)] == ["0 s", "99 s", "2 min", "83 min", "2.0 h"]
