"""Memory that passes free and ask for again: the C library is told to keep it."""

import ctypes
import os
import sys
from functools import cache

TRIM, MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
KEPT, LARGE = 2**30, 2**25  # bytes kept at the end of the heap; blocks from this size on, glibc's largest, are not
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")  # by which a user has chosen already


@cache
def keep_freed_memory() -> None:
    """Raise, once, what glibc keeps of freed memory; elsewhere, or where the user has set it, nothing happens.

    By itself glibc gives a pass's memory back to the system and takes it again, page by page, in the next one: that
    takes about a fifth of a residual network's training step (benchmarks/kept_memory.py).
    """
    chosen = any(name in os.environ for name in OWN) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and not chosen:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(MMAP, LARGE)
            mallopt(TRIM, KEPT)
