"""Jobs in processes of their own, some at a time; none outlives the process that waits for them."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sihg.interrupt import stop_on_interrupt

SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Job:
    """A command that tells of its progress on standard output, a JSON object a line, and stops when its input ends."""

    name: str
    command: Sequence[str]
    log: Path  # gets what it says on standard error


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    code: int
    seconds: float
    words: str  # why: its last ones, or the signal that ended it


Hear = Callable[[str, dict[str, Any]], object]


class Processes:
    """Runs jobs; `hear(name, about)` hears of every line, and of {"begin": True} and {"end": Ended}.

    Ctrl-C reaches this process alone: it ends the input of the others, which then stop at a safe point. If this process
    is killed, its end of their input is closed as well.
    """

    def __init__(self, at_once: int, hear: Hear) -> None:
        self.at_once, self.hear = at_once, hear
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()  # of what follows, and of hearing
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> bool:
        """Run all; tells whether Ctrl-C came before the end, a second of which kills."""
        with stop_on_interrupt() as asked, ThreadPoolExecutor(self.at_once) as pool:
            left = {pool.submit(self._run, job) for job in jobs}
            try:
                while left:
                    done, left = wait(left, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                    for one in done:
                        one.result()
                    if asked():
                        self._stop()
            except BaseException:
                self._stop(kill=True)
                raise
            return self._stopping

    def _stop(self, *, kill: bool = False) -> None:
        with self._lock:
            self._stopping = True
            for child in self._running:
                if kill:
                    child.kill()
                elif child.stdin is not None:
                    child.stdin.close()

    def _run(self, job: Job) -> None:
        begin = time.monotonic()
        with self._lock:
            if self._stopping:
                return
            self.hear(job.name, {"begin": True})
            try:
                child = _started(job)
                self._running.add(child)
            except OSError as error:
                self.hear(job.name, {"end": Ended(2, 0.0, str(error))})
                return
        with child:
            for line in child.stdout or ():
                self._tell(job.name, json.loads(line))
            code = child.wait()
            with self._lock:
                self._running.remove(child)
        self._tell(job.name, {"end": Ended(code, time.monotonic() - begin, _why(code, job.log))})

    def _tell(self, name: str, about: dict[str, Any]) -> None:
        with self._lock:
            self.hear(name, about)


def _started(job: Job) -> subprocess.Popen[str]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    pipe = subprocess.PIPE
    with job.log.open("ab") as log:
        return subprocess.Popen(job.command, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True)


def _why(code: int, log: Path) -> str:
    """The signal that ended a process, or the last line of its log that says something."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
