"""A report that follows runs."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.report.watch import file_states, follow
from tests.report.folders import rows, write_run

REFRESH = '<meta http-equiv="refresh" content="2">'


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


def test_the_page_follows_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "m", rows([0.5], [0.25]), epochs=2)
    told: list[str] = []
    pages: list[str] = []

    def wait(_: float) -> None:
        pages.append((run / "index.html").read_text(encoding="utf-8"))
        match len(pages):
            case 1:
                with (run / "metrics.csv").open("a") as file:
                    file.write("2,52,1.0,0.6,0.75,0.")  # half a row
            case 2:
                (run / "environment.json").write_text("{")
            case 3:
                (run / "environment.json").write_text("{}")
            case _:
                raise KeyboardInterrupt

    follow([run], 2, told.append, wait)
    assert all(REFRESH in page for page in pages)
    assert len(told) == 1
    assert str(run / "environment.json") in told[0]
    last = (run / "index.html").read_text(encoding="utf-8")
    assert "refresh" not in last
    assert "1 of 2 epochs done so far" in last


def test_only_changes_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "m")
    drawn: list[float | None] = []
    monkeypatch.setattr("sihg.report.watch.report_training", lambda _folder, refresh: drawn.append(refresh))
    waits = iter([False, False, True])

    def wait(_: float) -> None:
        if next(waits):
            raise KeyboardInterrupt

    follow([run], 2, lambda _: None, wait)
    assert drawn == [2, None]
    before = file_states(run)
    (run / "index.html").write_text("")
    assert file_states(run) == before
    (run / "memory.csv").write_text("epoch\n")
    assert file_states(run) != before


def test_a_folder_without_runs_is_watched_until_one_begins(tmp_path: Path) -> None:
    told: list[str] = []
    there: list[bool] = []

    def wait(_: float) -> None:
        there.append((tmp_path / "index.html").exists())
        if len(there) == 2:
            write_run(tmp_path / "m")
        if len(there) == 3:
            raise KeyboardInterrupt

    follow([tmp_path], 2, told.append, wait)
    assert (there, told) == ([False, False, True], [])


def test_a_damaged_grid_is_reported(tmp_path: Path) -> None:
    write_run(tmp_path / "m")
    (tmp_path / "grid.toml").write_text("methods = ")
    told: list[str] = []
    waits = iter([False, True])

    def wait(_: float) -> None:
        if next(waits):
            raise KeyboardInterrupt

    follow([tmp_path], 2, told.append, wait)
    assert len(told) == 2  # once, and when it ends
    assert "grid.toml" in told[0]


def test_a_folder_that_never_had_a_run_gets_no_page(tmp_path: Path) -> None:
    def wait(_: float) -> None:
        raise KeyboardInterrupt

    told: list[str] = []
    follow([tmp_path], 2, told.append, wait)
    assert (list(tmp_path.iterdir()), told) == ([], [])


def test_ctrl_c_ends_the_watch_cleanly(tmp_path: Path) -> None:
    run = write_run(tmp_path / "m")
    code = "import sys; from sihg.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "report", str(run), "--watch", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (run / "index.html").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 0
    assert "Ctrl-C ends" in said
    assert "Traceback" not in said
    assert 'http-equiv="refresh"' not in (run / "index.html").read_text(encoding="utf-8")


def test_folders_that_cannot_be_watched_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "m")
    assert main(["report", str(run), "--watch", "0"]) == 2
    assert "--watch must be finite and >= 1, got 0" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "gone"), "--watch"]) == 2
    assert "gone is not a folder (it does not exist)" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{}")
    assert main(["report", str(tmp_path), "--watch"]) == 2
    assert "leave out --watch" in capsys.readouterr().err
