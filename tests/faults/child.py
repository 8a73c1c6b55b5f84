"""Run something in a forked child, which may be killed at any moment."""

import contextlib
import io
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

SECONDS = 120  # after which a child is taken to hang


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    value: Any = None
    output: str = ""
    errors: str = ""
    traceback: str = ""  # of an exception that nobody caught
    signal: int = 0  # that killed it

    def new_warnings(self, usual: "Ended") -> list[str]:
        """Return the lines on standard error that warn of something, and that `usual` has not."""
        lines = [line for line in self.errors.splitlines() if line not in usual.errors]
        return [line for line in lines if "warning: " in line.lower() or line.startswith("skipped ")]

    def __str__(self) -> str:
        if self.signal:
            return f"ended by {signal.Signals(self.signal).name}"
        said = (self.traceback or self.errors).strip().splitlines()
        return f"ended with: {said[-1] if said else 'no word'}"


def run_in_child(work: Callable[[], Any], folder: Path) -> Ended:
    """Run `work` in a child whose current folder is `folder`; its result must be picklable."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work_and_exit(work, folder, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    ended: Ended = pickle.loads(data)
    return ended


def _work_and_exit(work: Callable[[], Any], folder: Path, writing: int) -> NoReturn:
    signal.alarm(SECONDS)
    os.chdir(folder)
    output, errors, ended = io.StringIO(), io.StringIO(), Ended()
    sys.stdin = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            ended = Ended(work())
        except BaseException:
            ended = Ended(traceback=traceback.format_exc())
    ended = replace(ended, output=output.getvalue(), errors=errors.getvalue())
    with os.fdopen(writing, "wb") as file:
        pickle.dump(ended, file)
    os._exit(0)
