"""Progress without a terminal: a line at intervals on standard error."""

import pytest

from sihg.cli import progress


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr("sihg.cli.progress.time.monotonic", lambda: now)
    with progress.Bar("gda", 8) as bar:
        bar.update(1, "")
        now = progress.SECONDS_BETWEEN_LINES
        bar.update(2, "|F|^2 3")
        bar.update(3, "|F|^2 2")
        now *= 2
        bar.update(4, "")
    assert capsys.readouterr().err == "gda: 2 of 8 iterations, |F|^2 3\ngda: 4 of 8 iterations\n"
