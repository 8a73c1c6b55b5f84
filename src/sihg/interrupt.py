"""Treat Ctrl-C and SIGTERM as a request to stop at the next safe point."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sihg.launch import is_launched


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or SIGTERM came; a second one raises KeyboardInterrupt.

    Under torchrun it does not: Ctrl-C and torchrun both send signals, and the processes must stop at the same step.
    torchrun kills those that do not stop within 30 seconds. Outside the main thread Python delivers no signals; there
    the function always returns False.
    """
    asked = False

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked and not is_launched():
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    with _handling(ask):
        yield lambda: asked


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt, even if a shell in the background ignores them."""
    with _handling(signal.default_int_handler):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
