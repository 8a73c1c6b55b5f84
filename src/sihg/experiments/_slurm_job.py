"""What a job of a cluster does: run the process of a cell, and stop it at a safe point before the job is requeued."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from submitit.core.job_environment import JobEnvironment
from submitit.helpers import Checkpointable, DelayedSubmission

from sihg.store.files import open_in_place

STOPPED = 130  # exit code of a cell that stopped at a safe point
GRACE_SECONDS = 600.0  # in which a cluster that has sent SIGTERM requeues the job, or ends it


class CellJob(Checkpointable):
    """Runs a command that stops at a safe point when its input ends; submitit calls it in the job.

    submitit calls `checkpoint` when the job reaches its time limit or is preempted. The job is then requeued, and the
    command continues from what it has written.
    """

    def __init__(self, command: Sequence[str], log: Path, cwd: Path) -> None:
        self.command, self.log, self.cwd = list(command), log, cwd
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Run the command; raise CalledProcessError unless it ends well."""
        log = self.cwd / self.log
        with os.fdopen(open_in_place(log, os.O_APPEND | os.O_CREAT), "ab", buffering=0) as output:
            output.write(f"job {JobEnvironment().job_id}: process {os.getpid()} on {socket.gethostname()}\n".encode())
            self._child = self._start(output)
            with self._child:
                code = self._child.wait()
        if code == STOPPED:  # the cluster's SIGTERM has reached the command, too
            time.sleep(GRACE_SECONDS)
        if code:
            raise subprocess.CalledProcessError(code, self.command)

    def _start(self, output: IO[bytes]) -> "subprocess.Popen[bytes]":
        # Slurm sends its warning to every process of a job. A blocked signal stays blocked in the command; here it
        # arrives after the start.
        warning = {JobEnvironment._usr_sig()}
        signal.pthread_sigmask(signal.SIG_BLOCK, warning)
        try:
            return subprocess.Popen(
                self.command, cwd=self.cwd, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=output
            )
        except OSError as error:
            output.write(f"the cell cannot start: {error}\n".encode())
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, warning)

    def checkpoint(self) -> DelayedSubmission:
        """Let the command stop at a safe point; return what the requeued job does."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            # This is a signal handler inside `Popen.wait`, which holds a lock: wait without it.
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(CellJob(self.command, self.log, self.cwd))
