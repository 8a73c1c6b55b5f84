"""Jobs in processes: a limited number at a time, their output kept, no process left over."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.experiments.launcher import Event, Job, JobEnded, JobProgressed, JobStarted, Launcher, Progress

STOPPABLE = """
import os, sys
print("up", os.getpid(), file=sys.stderr, flush=True)
os.read(0, 1)  # until the input ends
print("stopped well", file=sys.stderr)
sys.exit(130)
"""
# Writes to a named pipe, whose reader sees the end when the process is gone, however it went.
TELLING = """
import os, sys
pipe = open(sys.argv[1], "w", buffering=1)
print("up", file=pipe)
os.read(0, 1)
print("stopped well", file=pipe)
"""
LINE = """print('{"phase": "training", "done": 1, "total": 2}', flush=True)"""


def make_job(tmp_path: Path, name: str, code: str, prepare: Callable[[], object] = lambda: None) -> Job:
    return Job(name, [sys.executable, "-c", code], tmp_path / name / "output.log", prepare)


def run(launcher: Launcher, *jobs: Job) -> list[Event]:
    return list(launcher.run(jobs))


def ends(events: list[Event]) -> dict[str, JobEnded]:
    return {event.name: event for event in events if isinstance(event, JobEnded)}


def test_progress_is_reported_and_errors_are_kept(tmp_path: Path) -> None:
    good = f"print('not progress'); {LINE}"
    bad = "import sys; print('first', file=sys.stderr); sys.exit('the reason')"
    launcher = Launcher(2)
    events = run(launcher, make_job(tmp_path, "good", good), make_job(tmp_path, "bad", bad))
    of_good = [event for event in events if event.name == "good"]
    assert of_good[:2] == [JobStarted("good"), JobProgressed("good", Progress("training", 1, 2))]
    ended = ends(events)
    assert (ended["good"].code, ended["good"].reason) == (0, "it wrote nothing")
    assert (ended["bad"].code, ended["bad"].reason) == (1, "the reason")
    assert (tmp_path / "bad" / "output.log").read_text() == "first\nthe reason\n"
    assert not launcher.interrupted


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_limited_number_at_a_time_in_order(at_once: int, tmp_path: Path) -> None:
    events = run(Launcher(at_once), *(make_job(tmp_path, f"{i}", "pass") for i in range(4)))
    running: set[str] = set()
    most = 0
    for event in events:
        running = running | {event.name} if isinstance(event, JobStarted) else running - {event.name}
        most = max(most, len(running))
    assert most == at_once
    assert [event.name for event in events if isinstance(event, JobStarted)] == ["0", "1", "2", "3"]
    assert sorted(ends(events)) == ["0", "1", "2", "3"]


def test_a_job_that_is_killed(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    ended = ends(run(Launcher(1), make_job(tmp_path, "a", code), make_job(tmp_path, "b", "pass")))
    assert (ended["a"].code, ended["a"].reason) == (-9, "killed by SIGKILL")
    assert ended["b"].code == 0


def test_a_job_that_cannot_start_does_not_stop_the_others(tmp_path: Path) -> None:
    def refuse() -> None:
        raise InputError("no-problem")

    (tmp_path / "taken").write_text("a file")
    jobs = [make_job(tmp_path, "taken", "pass"), make_job(tmp_path, "free", "pass")]
    ended = ends(run(Launcher(1), *jobs, make_job(tmp_path, "refused", "pass", refuse)))
    assert ended["taken"].code == 2
    assert str(tmp_path / "taken") in ended["taken"].reason
    assert ended["free"].code == 0
    assert (ended["refused"].code, ended["refused"].reason) == (2, str(InputError("no-problem")))
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_running_jobs_and_starts_no_more(number: signal.Signals, tmp_path: Path) -> None:
    launcher, events = Launcher(2), list[Event]()
    with closing(launcher.run([make_job(tmp_path, name, STOPPABLE) for name in "abc"])) as running:
        for event in running:
            assert event != JobStarted("c")
            events.append(event)
            if event == JobStarted("b"):
                os.kill(os.getpid(), number)
    assert launcher.interrupted
    assert {name: end.code for name, end in ends(events).items()} == {"a": 130, "b": 130}
    for name in "ab":
        assert (tmp_path / name / "output.log").read_text().endswith("stopped well\n")


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    stubborn = f"import os, sys, signal; print(os.getpid(), file=sys.stderr); {LINE}; signal.pause()"

    def interrupt_twice() -> None:
        with closing(Launcher(1).run([make_job(tmp_path, "a", stubborn)])) as events:
            for event in events:
                if isinstance(event, JobProgressed):
                    os.kill(os.getpid(), signal.SIGINT)
                    os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "a" / "output.log").read_text()), 0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_kill_9_leaves_no_process_behind(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from sihg.experiments.launcher import Job, Launcher
from tests.experiments.test_launcher import TELLING
folder = Path({str(tmp_path)!r})
jobs = [Job(name, [sys.executable, "-c", TELLING, folder / name], folder / "output.log") for name in "ab"]
list(Launcher(2).run(jobs))
"""
    pipes = [tmp_path / name for name in "ab"]
    for pipe in pipes:
        os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2]) as parent:
        outputs = [pipe.open() for pipe in pipes]  # waits until the process has opened it too
        assert [output.readline() for output in outputs] == ["up\n", "up\n"]
        parent.kill()
    for output in outputs:
        with output:
            assert output.read() == "stopped well\n"  # and the end, so the process is gone


def test_a_job_that_removes_its_log_ends(tmp_path: Path) -> None:
    log = tmp_path / "tidy" / "output.log"
    ended = ends(run(Launcher(1), make_job(tmp_path, "tidy", f"import os; os.remove({str(log)!r})")))
    assert (ended["tidy"].code, "its log cannot be read" in ended["tidy"].reason) == (0, True)
