"""A process for each library that is timed, so that none is served by what another asks of the machine.

Ours tells the C library to keep the memory that passes free (`robust/allocator.py`), and that holds for a whole
process: a peer beside it would be faster than its users ever see it. Nor does a case find what a larger one before it
has made the C library keep: each has processes of its own. One works at a time.
"""

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

PATIENCE = 5.0  # seconds until a process that still works is ended


class Apart:
    """Processes by name, begun when they are first needed and ended with the block: `apart(name, function, *args)`.

    The function and what it takes and gives must be picklable.
    """

    def __init__(self) -> None:
        self.processes: dict[str, tuple[BaseProcess, Connection]] = {}

    def __call__(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """What the function gives in that process."""
        if name not in self.processes:
            self.processes[name] = _begun()
        process, connection = self.processes[name]
        try:
            # as bytes: `send` would hand tensors over in shared memory, not in memory that malloc gave
            connection.send_bytes(pickle.dumps((function, args)))
            done, answer = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            process.join()
            code = f"code {process.exitcode}" + (
                ", as by a lack of memory" if process.exitcode == -signal.SIGKILL else ""
            )
            raise RuntimeError(f"the process of {name} has ended with {code}: what it said is above") from None
        if not done:
            raise RuntimeError(f"{name} failed in its process:\n{answer}")
        return answer

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self.processes.values():
            connection.close()  # ends one that waits
            process.join(PATIENCE)
            process.terminate()
            process.join()


def _begun() -> tuple[BaseProcess, Connection]:
    """A new process, with nothing of this one's memory, and the line to it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's, which then ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        try:
            function, args = pickle.loads(request)
            answer = pickle.dumps((True, function(*args)))
        except Exception:
            answer = pickle.dumps((False, traceback.format_exc()))
        connection.send_bytes(answer)


def _end_with_parent() -> None:
    """End even in the midst of work: nobody would hear of it any more."""
    parent = parent_process()
    assert parent is not None, "this is for processes that another one began"
    wait([parent.sentinel])
    os._exit(1)
