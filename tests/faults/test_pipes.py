"""Readers that go away, full disks and closed streams: work is finished, and the exit code tells of a lost result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.store.tables import read_table

EPOCHS = 4
TINY = (
    *("train", "--data", "digits", "--method", "natural", "--samples", "60", "--epochs", str(EPOCHS)),
    *("--validation", "0", "--batch-size", "20", "--width", "0.2", "--threads", "1", "--out"),
)
COMMAND = (sys.executable, "-m", "sihg")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
FULL = Path("/dev/full")
INTERRUPTED = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from sihg.cli.main import main
sys.exit(main({words}))
"""


def epochs_done(run: Path) -> int:
    return len(read_table(run / "metrics.csv"))


def broken_pipe() -> int:
    """Return the writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def start(*words: object, **streams: int) -> "subprocess.CompletedProcess[str]":
    """Run a command; a stream that is not given is captured."""
    captured = {name: streams.get(name, subprocess.PIPE) for name in ("stdout", "stderr")}
    words = (*COMMAND, *map(str, words))
    try:
        return subprocess.run(words, check=False, text=True, env=ENVIRONMENT, timeout=60, **captured)  # type: ignore[call-overload, no-any-return]
    finally:
        for handle in set(streams.values()):
            os.close(handle)


def is_quiet(text: str) -> bool:
    return "Traceback" not in text and "Exception ignored" not in text


def test_a_reader_that_ends_after_a_line_stops_no_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (*COMMAND, *TINY, str(run))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"settings: ")
        process.stdout.close()
        assert process.wait(60) == 141
    assert epochs_done(run) == EPOCHS


def test_a_result_that_nobody_reads(tmp_path: Path) -> None:
    done = start(*TINY, tmp_path / "run", "--json", stdout=broken_pipe())
    assert done.returncode == 141
    assert is_quiet(done.stderr)
    assert f"epoch {EPOCHS}: " in done.stderr


def test_messages_that_nobody_reads(tmp_path: Path) -> None:
    done = start(*TINY, tmp_path / "run", stderr=broken_pipe())
    assert done.returncode == 0
    assert "natural" in done.stdout
    assert epochs_done(tmp_path / "run") == EPOCHS


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_behind_results(tmp_path: Path) -> None:
    done = start(*TINY, tmp_path / "run", stdout=os.open(FULL, os.O_WRONLY))
    assert done.returncode == 2
    assert "[cannot-print]" in done.stderr
    assert is_quiet(done.stderr)
    assert epochs_done(tmp_path / "run") == EPOCHS


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_behind_messages(tmp_path: Path) -> None:
    done = start(*TINY, tmp_path / "run", stderr=os.open(FULL, os.O_WRONLY))
    assert done.returncode == 0
    assert "natural" in done.stdout
    assert epochs_done(tmp_path / "run") == EPOCHS


def test_closed_streams(tmp_path: Path) -> None:
    words = " ".join([*COMMAND, *TINY])
    done = subprocess.run(
        ["sh", "-c", f"{words} '{tmp_path / 'run'}' >&- 2>&-"], check=False, env=ENVIRONMENT, timeout=60
    )
    assert done.returncode == 0
    assert epochs_done(tmp_path / "run") == EPOCHS


@pytest.mark.parametrize("words", [["--help"], ["solve", "--list"], ["data", "list"], ["--print-completion", "bash"]])
def test_other_commands(words: list[str]) -> None:
    done = start(*words, stdout=broken_pipe())
    assert done.returncode == 141
    assert done.stderr == ""


def test_a_terminal_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "FORCE_COLOR", "1")  # bars, as on a terminal
    writing = broken_pipe()
    done = start(*TINY, tmp_path / "run", stderr=writing)
    assert done.returncode == 0
    assert epochs_done(tmp_path / "run") == EPOCHS


@pytest.mark.parametrize(("name", "said"), [("sihg.cli.common", ""), ("torch", "sihg: interrupted\n")])
def test_ctrl_c_while_importing(name: str, said: str, tmp_path: Path) -> None:
    code = INTERRUPTED.format(name=name, words=[*TINY, str(tmp_path / "run")])
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
    assert done.stderr.removeprefix("settings: preset digits\n") == said
    assert not (tmp_path / "run").exists()
