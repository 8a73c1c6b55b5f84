"""How many samples are attacked at once. Draws do not depend on it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from sihg.errors import InputError
from sihg.robust.attacks.attacked_rows import ROWS_PER_DRAW

MAX_VALUES, MAX_ROWS = 1024 * 784, 1024  # values of x, and rows, in a chunk: measured, see benchmarks/attack_speed.py
_row_limit: ContextVar[int | None] = ContextVar("row_limit", default=None)


def rows_per_chunk(shape: Sequence[int]) -> int:
    """Return how many samples of this shape to attack at once: a multiple of ROWS_PER_DRAW, or the limit set."""
    fitting = MAX_VALUES // max(1, math.prod(shape)) // ROWS_PER_DRAW * ROWS_PER_DRAW
    return min(max(ROWS_PER_DRAW, min(MAX_ROWS, fitting)), _row_limit.get() or MAX_ROWS)


@contextmanager
def limit_rows(most: int | None) -> Iterator[None]:
    """Attack at most so many rows at once within the block; None sets no limit."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise InputError("count-range", setting="batch_size", value=most)
    token = _row_limit.set(most)
    try:
        yield
    finally:
        _row_limit.reset(token)
