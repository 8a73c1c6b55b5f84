"""A process for each library that is timed, so that none is served by what another asks of the machine.

Ours tells the C library to keep the memory that passes free (`robust/allocator.py`), and that holds for a whole
process: a peer beside it would be faster than its users ever see it. One process works at a time.
"""

import pickle
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any


class Apart:
    """Processes by name, begun when they are first needed and ended with the block: `apart(name, function, *args)`.

    The function and what it takes and gives must be picklable.
    """

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}

    def __call__(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """What the function gives, or raises, in that process."""
        if name not in self.connections:
            context = get_context("spawn")  # with nothing of this process's memory
            self.connections[name], theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs,), daemon=True).start()
            theirs.close()
        connection = self.connections[name]
        connection.send_bytes(pickle.dumps((function, args)))  # as bytes: torch would share tensors in another memory
        try:
            answer = pickle.loads(connection.recv_bytes())
        except EOFError:
            raise RuntimeError(f"the process of {name} has ended: was it short of memory?") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for connection in self.connections.values():
            connection.close()  # which ends the process


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's
    while True:
        try:
            function, args = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = function(*args)
        except Exception as error:
            answer = error
        connection.send_bytes(pickle.dumps(answer))
