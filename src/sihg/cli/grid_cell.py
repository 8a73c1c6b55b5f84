"""What a process of `sihg reproduce` does: train, or go on, then evaluate, as the commands do.

Its input is held open by the process that waits for it: the end of input means to stop. Progress goes to standard
output, a JSON object a line; all that the commands say goes to standard error.
"""

import _thread
import json
import os
import shlex
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from sihg.cli.main import main as command
from sihg.cli.progress import heard_by
from sihg.interrupt import interrupted_at_once
from sihg.store.lock import InUseError, locked

SECONDS_BETWEEN_LINES = 0.2
PATIENCE = 60.0  # seconds that a process of an earlier grid, told to stop, may take to write its checkpoint


def main(run: Path, train: list[str], resume: list[str], evaluate: list[str]) -> int:
    """Run the commands in a row; the exit code of the first that does not succeed."""
    stopping = threading.Event()
    threading.Thread(target=_stop_at_the_end_of_input, args=(stopping,), daemon=True).start()
    progress = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    try:
        with interrupted_at_once(), heard_by(_Lines(progress)):
            _wait_until_free(run)
            begun = (run / "config.toml").is_file()
            if code := _said(resume if begun else train):
                return code
            if stopping.is_set():  # in the last epoch, which training ends all the same
                return 130
            with locked(run):  # which evaluations do not take themselves
                return _said(evaluate)
    except KeyboardInterrupt:
        return 130


def _said(words: list[str]) -> int:
    print(f"$ {shlex.join(['sihg', *words])}", file=sys.stderr, flush=True)
    return command(words)


def _stop_at_the_end_of_input(stopping: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    stopping.set()
    _thread.interrupt_main()


def _wait_until_free(run: Path) -> None:
    """Let another process end; if it does not, the command says so."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            with locked(run):
                return
        except InUseError:
            time.sleep(SECONDS_BETWEEN_LINES)


class _Lines:
    """Writes progress, but not all too often."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.next, self.name = out, 0.0, ""

    def __call__(self, name: str, done: int, of: int) -> None:
        if name != self.name or done == of or time.monotonic() >= self.next:
            self.name, self.next = name, time.monotonic() + SECONDS_BETWEEN_LINES
            with suppress(BrokenPipeError):  # nobody listens any more, so the input has ended too
                self.out.write(json.dumps({"phase": name, "done": done, "total": of}) + "\n")


if __name__ == "__main__":
    _, folder, *commands = sys.argv
    sys.exit(main(Path(folder), *map(json.loads, commands)))
