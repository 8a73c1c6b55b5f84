"""Jobs in processes: so many at a time, all that they say heard, none left over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sihg.experiments.launcher import Ended, Job, Processes

STOPPABLE = """
import os, sys, time
print("up", os.getpid(), file=sys.stderr, flush=True)
os.read(0, 1)  # until the input ends
time.sleep(0.1)
print("stopped well", file=sys.stderr)
sys.exit(130)
"""


def job(tmp_path: Path, name: str, code: str) -> Job:
    return Job(name, [sys.executable, "-c", code], tmp_path / name / "output.log")


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, about: dict[str, Any]) -> None:
        self.events.append((name, about))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [about for one, about in self.events if one == name]

    def ended(self) -> dict[str, Ended]:
        return {name: about["end"] for name, about in self.events if "end" in about}


def test_lines_are_heard_and_errors_are_kept(tmp_path: Path) -> None:
    heard = Heard()
    good = "print('{\"done\": 1}'); print('{\"done\": 2}')"
    bad = "import sys; print('first', file=sys.stderr); sys.exit('the reason')"
    assert not Processes(2, heard).run([job(tmp_path, "good", good), job(tmp_path, "bad", bad)])
    assert heard.of("good")[:3] == [{"begin": True}, {"done": 1}, {"done": 2}]
    ended = heard.ended()
    assert (ended["good"].code, ended["bad"].code, ended["bad"].words) == (0, 1, "the reason")
    assert (tmp_path / "bad" / "output.log").read_text() == "first\nthe reason\n"


@pytest.mark.parametrize("at_once", [1, 2])
def test_so_many_at_a_time_in_order(at_once: int, tmp_path: Path) -> None:
    heard = Heard()
    assert not Processes(at_once, heard).run([job(tmp_path, f"{i}", "import time; time.sleep(0.2)") for i in range(4)])
    running: set[str] = set()
    most = 0
    for name, about in heard.events:
        running = running | {name} if "begin" in about else running - {name}
        most = max(most, len(running))
    assert most == at_once
    assert [name for name, about in heard.events if "begin" in about] == ["0", "1", "2", "3"]
    assert sorted(heard.ended()) == ["0", "1", "2", "3"]


def test_a_job_that_is_killed(tmp_path: Path) -> None:
    heard = Heard()
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert not Processes(1, heard).run([job(tmp_path, "a", code), job(tmp_path, "b", "pass")])
    assert (heard.ended()["a"].code, heard.ended()["a"].words) == (-9, "killed by SIGKILL")
    assert heard.ended()["b"].code == 0


def test_a_job_that_cannot_begin_does_not_keep_the_others(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    heard = Heard()
    assert not Processes(1, heard).run([job(tmp_path, "taken", "pass"), job(tmp_path, "free", "pass")])
    assert heard.ended()["taken"].code == 2
    assert str(tmp_path / "taken") in heard.ended()["taken"].words
    assert heard.ended()["free"].code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_lets_those_that_run_stop_and_begins_no_more(number: signal.Signals, tmp_path: Path) -> None:
    heard = Heard()
    seen: list[str] = []

    def hear(name: str, about: dict[str, Any]) -> None:
        heard(name, about)
        seen.append(name)
        if "begin" in about and len(seen) == 2:
            os.kill(os.getpid(), number)

    assert Processes(2, hear).run([job(tmp_path, name, STOPPABLE) for name in "abc"])
    assert {name: one.code for name, one in heard.ended().items()} == {"a": 130, "b": 130}
    for name in "ab":
        assert (tmp_path / name / "output.log").read_text().endswith("stopped well\n")


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    stubborn = "import time; print('{}', flush=True); time.sleep(600)"
    begin = time.monotonic()

    def hear(_name: str, about: dict[str, Any]) -> None:
        if not about:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Processes(1, hear).run([job(tmp_path, "a", stubborn)])
    assert time.monotonic() - begin < 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")
def test_kill_9_leaves_no_process_behind(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tests.experiments.test_launcher import STOPPABLE, Heard, job
from sihg.experiments.launcher import Processes
Processes(2, Heard()).run([job(Path({str(tmp_path)!r}), name, STOPPABLE) for name in "ab"])
"""
    logs = [tmp_path / name / "output.log" for name in "ab"]
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2]) as parent:
        wait_for(lambda: all(log.is_file() and log.read_text().startswith("up") for log in logs))
        parent.kill()
    wait_for(lambda: all(log.read_text().endswith("stopped well\n") for log in logs))
    for log in logs:
        wait_for(lambda log=log: not alive(int(log.read_text().split()[1])))


def wait_for(happened: Any) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and that nobody asks about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
