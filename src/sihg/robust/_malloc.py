"""Tell the C library to keep memory that one pass frees and the next one needs."""

import ctypes
import os
import sys
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # in glibc's malloc.h
MAX_KEPT, MAX_BLOCK = 2**30, 2**25  # bytes kept at the end of the heap; larger blocks are never kept
USER_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@cache
def keep_freed_memory() -> None:
    """Raise the amount of freed memory that glibc keeps, once, unless the user has set it.

    By default glibc returns the memory of a pass to the system and takes it again, page by page, in the next pass.
    That takes about a fifth of a training step of a residual network (benchmarks/malloc_retention.py).
    """
    chosen = any(name in os.environ for name in USER_VARIABLES) or "glibc.malloc." in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if sys.platform == "linux" and not chosen:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl does not have it
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, MAX_BLOCK)
            mallopt(M_TRIM_THRESHOLD, MAX_KEPT)
