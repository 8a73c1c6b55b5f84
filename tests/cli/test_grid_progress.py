"""One display over a grid: plain lines, or a line for each running cell on a terminal."""

import io

import pytest
from rich.console import Console

from sihg.cli import grid_progress
from sihg.cli.grid_progress import GridProgress, duration
from sihg.cli.progress import Bar, heard_by
from sihg.experiments.launcher import Ended
from sihg.experiments.time_left import Outlook

COSTS = {name: {"training": 60.0, "pgd-20": 20.0} for name in ("pgd-s0", "msi-hg-s0", "pgd-s1")}


def is_done(cell: str) -> bool:
    return cell.startswith("pgd")


def tell(progress: GridProgress) -> None:
    """Two cells begin; one is in its training, one fails."""
    progress.hear("pgd-s0", {"begin": True})
    progress.hear("msi-hg-s0", {"begin": True})
    progress.hear("pgd-s0", {"name": "training", "done": 30, "of": 60})
    progress.hear("msi-hg-s0", {"end": Ended(2, 1.5, "sihg: error: a reason")})
    progress.hear("pgd-s0", {"end": Ended(0, 61.04, "")})


def test_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(grid_progress, "SECONDS_BETWEEN_LINES", 0.0)
    with GridProgress(Outlook(COSTS, 2, lambda: 0.0), 4, 1, is_done) as progress:
        tell(progress)
    lines = capsys.readouterr().err.splitlines()
    assert lines[2].startswith("pgd-s0 training 38%, msi-hg-s0 starting 0%; 1 of 4 done, about ")
    assert lines[3] == "msi-hg-s0: failed (sihg: error: a reason), 1.5 s; 1 of 4 are done"
    assert lines[5] == "pgd-s0: done, 61.0 s; 2 of 4 are done"
    assert {name: one.code for name, one in progress.ended.items()} == {"msi-hg-s0": 2, "pgd-s0": 0}


def test_a_cell_whose_figures_are_doubted_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with GridProgress(Outlook(COSTS, 2, lambda: 0.0), 4, 1, is_done) as progress:
        progress.hear("pgd-s0", {"begin": True})
        progress.hear("pgd-s0", {"end": Ended(2, 3.0, "error: an attack left the ball")})
    assert "pgd-s0: done, 3.0 s; 2 of 4 are done" in capsys.readouterr().err


def test_few_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with GridProgress(Outlook(COSTS, 2), 4, 1, is_done) as progress:
        progress.hear("pgd-s0", {"begin": True})
        for done in range(60):
            progress.hear("pgd-s0", {"name": "training", "done": done, "of": 60})
    assert capsys.readouterr().err == ""


def test_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(grid_progress, "Console", lambda **_: Console(file=out, force_terminal=True, width=100))
    with GridProgress(Outlook(COSTS, 2), 4, 1, is_done) as progress:
        progress.hear("pgd-s0", {"begin": True})
        progress.hear("pgd-s0", {"name": "training", "done": 30, "of": 60})
        assert progress._rich is not None
        progress._rich.refresh()
        shown = out.getvalue()
        progress.hear("pgd-s0", {"end": Ended(0, 61.0, "")})
    assert "pgd-s0" in shown
    assert "38 %" in shown
    assert "1 of 4 done, about" in shown
    assert "pgd-s0: done, 61.0 s; 2 of 4 are done" in out.getvalue()


def test_times_as_people_say_them() -> None:
    assert [duration(s) for s in (0.4, 99, 125, 5000, 7200)] == ["0 s", "99 s", "2 min", "83 min", "2.0 h"]


def test_a_listener_hears_what_a_bar_would_show(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[tuple[str, int, int]] = []
    with heard_by(lambda *about: heard.append(about)), Bar("training", 8, "steps") as bar:
        bar.update(3, "loss 1")
        bar.update(8, "loss 0")
    assert heard == [("training", 3, 8), ("training", 8, 8)]
    with Bar("training", 8, "steps") as bar:
        bar.update(8, "")
    assert len(heard) == 2
    assert capsys.readouterr().err == ""
