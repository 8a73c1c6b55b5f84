"""Run jobs in processes of their own, some at a time; no process outlives the one that waits for it."""

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from sihg.errors import InputError
from sihg.experiments.torchrun import environment_of_a_cell
from sihg.interrupt import stop_on_interrupt
from sihg.store.files import open_in_place

SECONDS_BETWEEN_LOOKS = 0.2  # for Ctrl-C


@dataclass(frozen=True)
class Job:
    """A command that writes `Progress` to standard output, one JSON object per line, and stops when its input ends."""

    name: str
    command: Sequence[str]
    log: Path  # receives its standard error
    prepare: Callable[[], object] = lambda: None  # called before it starts


class Progress(msgspec.Struct, frozen=True):
    """How far a phase of a job is."""

    phase: str
    done: int
    total: int


@dataclass(frozen=True)
class JobQueued:
    """A job waits in the queue of a cluster, or runs there already."""

    name: str
    number: str  # by which the cluster knows it


@dataclass(frozen=True)
class JobStarted:
    """A job starts."""

    name: str


@dataclass(frozen=True)
class JobProgressed:
    """A job has written a line of progress."""

    name: str
    progress: Progress


@dataclass(frozen=True)
class JobEnded:
    """A job has ended; `reason` is the signal that ended it, or the last line of its log."""

    name: str
    code: int
    seconds: float
    reason: str


Event = JobQueued | JobStarted | JobProgressed | JobEnded


class Launcher:
    """Runs jobs, `at_once` at a time; `interrupted` says whether Ctrl-C or SIGTERM came before the end.

    Ctrl-C reaches this process only: it ends the input of the others, which then stop at a safe point. If this process
    is killed, the kernel ends their input.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.interrupted = False
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._events: SimpleQueue[Event] = SimpleQueue()

    def run(self, jobs: Iterable[Job]) -> Generator[Event]:
        """Run all jobs and yield what happens. A second Ctrl-C, or closing the iterator, kills those that run."""
        waiting = deque(jobs)
        with stop_on_interrupt() as is_interrupted:
            try:
                while waiting or self._running:
                    if is_interrupted() and not self.interrupted:
                        self.interrupted = True
                        waiting.clear()
                        self._end_inputs()
                    while waiting and len(self._running) < self.at_once:
                        job = waiting.popleft()
                        yield JobStarted(job.name)
                        try:
                            self._start(job)
                        except (InputError, OSError) as error:
                            yield JobEnded(job.name, 2, 0.0, str(error))
                    with suppress(Empty):  # then look for Ctrl-C again
                        event = self._events.get(timeout=SECONDS_BETWEEN_LOOKS)
                        if isinstance(event, JobEnded):
                            del self._running[event.name]
                        yield event
            finally:
                for child in self._running.values():
                    child.kill()
                    child.wait()

    def _start(self, job: Job) -> None:
        job.prepare()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        pipe = subprocess.PIPE
        with os.fdopen(open_in_place(job.log, os.O_APPEND | os.O_CREAT), "ab") as log:
            child = subprocess.Popen(
                job.command,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                env=environment_of_a_cell(),
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        self._running[job.name] = child
        threading.Thread(target=self._read, args=(job, child), daemon=True).start()

    def _read(self, job: Job, child: subprocess.Popen[str]) -> None:
        began = time.monotonic()
        with child:
            for line in child.stdout or ():
                with suppress(msgspec.DecodeError):  # another program's output
                    self._events.put(JobProgressed(job.name, msgspec.json.decode(line, type=Progress)))
            code = child.wait()
        self._events.put(JobEnded(job.name, code, time.monotonic() - began, _reason(code, job.log)))

    def _end_inputs(self) -> None:
        for child in self._running.values():
            if child.stdin is not None:
                child.stdin.close()


def _reason(code: int, log: Path) -> str:
    """Return the signal that ended a process, or the last line of its log with text."""
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')}"
    try:
        return (last_lines(log) or ["it wrote nothing"])[0]
    except OSError as error:
        return f"its log cannot be read ({error.strerror or error})"


def last_lines(log: Path, count: int = 1, *, after: int = 0) -> list[str]:
    """Return the last lines with text of a log, of what was written after its first `after` bytes."""
    text = log.read_bytes()[after:].decode("utf-8", errors="replace")
    return [line.strip() for line in text.split("\n") if line.strip()][-count:]
