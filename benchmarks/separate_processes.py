"""Run each library that is timed in its own process, so that none profits from another's settings.

Our code tells the C library to keep freed memory (`sihg/robust/_fast_passes.py`), and this holds for a whole process. A
peer in the same process would be faster than its users ever see it. Each case also starts new processes, so it does
not find memory that a larger case left behind. Only one process works at a time.
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

JOIN_SECONDS = 5.0  # a process that works longer than this at the end is terminated


class SeparateProcesses:
    """Named processes, started when first needed and ended with the block: `processes(name, function, *args)`.

    The function, its arguments and its result must be picklable.
    """

    def __init__(self) -> None:
        self.processes: dict[str, tuple[BaseProcess, Connection]] = {}

    def __call__(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function in the named process and return its result."""
        if name not in self.processes:
            self.processes[name] = start_process()
        process, connection = self.processes[name]
        try:
            # as bytes: `send` would pass tensors in shared memory, not in memory from malloc
            connection.send_bytes(pickle.dumps((function, args)))
            succeeded, answer = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            process.join()
            cause = " (killed, perhaps out of memory)" if process.exitcode == -signal.SIGKILL else ""
            raise RuntimeError(
                f"the process of {name} ended with exit code {process.exitcode}{cause}: see its output above"
            ) from None
        if not succeeded:
            raise RuntimeError(f"{name} failed in its process:\n{answer}")
        return answer

    def __enter__(self) -> "SeparateProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self.processes.values():
            connection.close()  # a process that waits for a request ends now
            process.join(JOIN_SECONDS)
            process.terminate()
            process.join()


def start_process() -> tuple[BaseProcess, Connection]:
    """Start a process that shares no memory with this one; return it and the connection to it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_requests, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def serve_requests(connection: Connection) -> None:
    """Call each function that the connection sends and send its result back, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and then ends this process
    threading.Thread(target=exit_with_parent, daemon=True).start()
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


def exit_with_parent() -> None:
    """Exit as soon as the parent process ends, even in the middle of a call."""
    parent = parent_process()
    assert parent is not None, "only for processes that another process started"
    wait([parent.sentinel])
    os._exit(1)
