"""Start processes that compute together, as a user does, and wait for them a bounded time."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
SECONDS = 240  # that a launch may take on a busy machine; a hang ends the test


def launch_command(processes: int, *options: str) -> list[str]:
    """The words that start a module or a script on so many processes of this machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", str(processes), *options]


def begin(
    processes: int, words: Sequence[str | Path], *, options: Sequence[str] = (), environment: Mapping[str, str] = {}
) -> "subprocess.Popen[str]":
    """Start processes: torchrun if there are several, else the words alone; `words` begin with "-m" or a script."""
    alone = [sys.executable]
    command = [*(launch_command(processes, *options) if processes > 1 or options else alone), *map(str, words)]
    own = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{SOURCE.parent}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command,
        env={**os.environ, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(started: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    """Wait for what `begin` started; kill all of it and fail if it does not end."""
    try:
        out, err = started.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # the workers die with their launcher
        out, err = started.communicate()
        raise AssertionError(f"still running after {SECONDS} seconds:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(started.args, started.returncode, out, err)


def launch(
    processes: int, words: Sequence[str | Path], *, options: Sequence[str] = (), environment: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    """Start processes and wait for their end."""
    return finish(begin(processes, words, options=options, environment=environment))


def lines_of(result: "subprocess.CompletedProcess[str]", word: str) -> list[str]:
    """The lines of the messages that hold a word, without torchrun's own."""
    return [line for line in result.stderr.splitlines() if word in line]
