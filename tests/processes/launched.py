"""Trainings under torchrun: start them, find their processes, kill them, and compare what they leave."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from sihg.robust.memory._row_format import RowFormat
from sihg.store.manifest import checkpoint_names, number_of
from tests.faults.workloads import differences, digest, trained

Result = dict[str, Any]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TRAIN = [
    *("-m", "sihg", "train", "--data", "digits", "--method", "msi-hg", "--threads", "1", "--lanes", "4"),
    *("--samples", "200", "--validation", "40", "--batch-size", "20", "--width", "1/4", "--checkpoint-minutes", "0"),
    *("--process-minutes", "0.5"),
]
STEPS_PER_EPOCH = 8
SECONDS = 600  # after which a launch is taken to hang
POLL_SECONDS = 0.002


class Agent:
    """A process of torchrun.

    Args:
        words: What follows `torchrun`.
        folder: The current folder of the training, which makes its run in `run`.
        prefix: A command that runs the agent, such as that of a network namespace.
        environment: Variables to add.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.output = folder / f"agent-{secrets.token_hex(4)}.log"
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", **(environment or {})}
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [*prefix, *TORCHRUN, *words], cwd=folder, env=variables, stdout=file, stderr=file
            )
        self._seen: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def workers(self) -> list[int]:
        """Return the processes that the agent has started and that live."""
        pid = self.process.pid
        with suppress(OSError):
            found = [
                int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()
            ]
            return sorted(child for child in found if b"sihg" in _command(child))
        return []

    def new_workers(self, count: int) -> list[int]:
        """Wait for `count` workers that were not there before; return none if the agent has ended."""
        for _ in _tries(SECONDS):
            fresh = [pid for pid in self.workers() if pid not in self._seen]
            if len(fresh) == count:
                self._seen.update(fresh)
                return fresh
            if self.process.poll() is not None:
                return []
        raise TimeoutError(f"no workers: {self.last_words()}")

    def wait(self) -> int:
        """Return the exit code."""
        return self.process.wait(SECONDS)

    def kill(self) -> None:
        """Kill the agent, and wait until it and its workers are gone."""
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        for _ in _tries(SECONDS):
            if not any(_lives(pid) for pid in workers):
                return
        raise TimeoutError(f"workers outlive their agent: {workers}")

    def last_words(self) -> str:
        """Return the end of what the agent and its workers have printed."""
        return self.output.read_text(errors="replace")[-2000:]


def kill_worker(pid: int) -> bool:
    """Kill a worker; return whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def wait_for_checkpoint(folder: Path, agent: Agent) -> bool:
    """Wait until a checkpoint is being written; return False if the agent has ended instead."""
    checkpoints = folder / "run" / "checkpoints"
    for _ in _tries(SECONDS):
        with suppress(OSError):
            if any(".tmp-" in name for name in os.listdir(checkpoints)):  # noqa: PTH208
                return True
        if agent.process.poll() is not None:
            return False
    raise TimeoutError("no checkpoint is written")


def wait_for_step(step: int, folder: Path, agent: Agent) -> bool:
    """Wait until the run has a checkpoint of this step or a later one; return False if the agent has ended instead."""
    for _ in _tries(SECONDS):
        if newest_step(folder) >= step:
            return True
        if agent.process.poll() is not None:
            return False
    raise TimeoutError(f"step {step} is not reached: {agent.last_words()}")


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint; -1 before the first one."""
    return max((number_of(name) for name in checkpoint_names(folder / "run" / "checkpoints", "last")), default=-1)


@contextmanager
def workshop() -> Iterator[Path]:
    """Make a folder for trainings, where a sync takes no time if there is such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        yield Path(home)


def undisturbed(home: Path, words: Sequence[str]) -> Result:
    """Train in one process without kills; return the result."""
    folder = home / f"whole-{secrets.token_hex(4)}"
    folder.mkdir()
    command = [sys.executable, *words, "--out", "run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return outcome(folder)


def outcome(folder: Path) -> Result:
    """Return what a training has left, without times, and without what the drawn id of a memory's files changes."""
    run = folder / "run"
    found = trained(run)
    if (run / "memory").is_dir():
        found = {name: value for name, value in found.items() if not name.startswith("last/memory")}
        found["memory"] = _rows(run / "memory")
    return found


def fault(folder: Path, agents: Sequence[Agent], expected: Result) -> str | None:
    """Wait for the agents; return None if the result is that of undisturbed training, else what happened.

    An agent that is started when the others have just finished finds a closed rendezvous; one must have finished.
    """
    finished = False
    for agent in agents:
        try:
            code = agent.wait()
        except subprocess.TimeoutExpired:
            return f"hangs: {agent.last_words()}"
        if code and not (len(agents) > 1 and "RendezvousClosedError" in agent.last_words()):
            return f"ended with {code}: {agent.last_words()}"
        finished |= code == 0
    if not finished:
        return f"nobody finished: {agents[0].last_words()}"
    other = differences(outcome(folder), expected)
    return f"another {other}" if other else None


def free_port() -> int:
    """Return a port that nobody listens to."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _rows(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a memory: values, samples and epochs of its rows, not their checksums."""
    about = json.loads((folder / "memory.json").read_text())
    size = RowFormat(about["n"], tuple(about["shape"]), about["eps"], about["dtype"], None).row_bytes
    files = sorted(folder.glob("*.bin"))
    return {file.name: digest(np.fromfile(file, np.uint8).reshape(-1, size)[:, :-4].copy()) for file in files}


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _tries(seconds: float) -> Iterator[None]:
    """Yield again and again, with short pauses, for at most this long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(POLL_SECONDS)
