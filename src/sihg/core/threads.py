"""How many threads torch computes with.

The rule: training and evaluation use one thread unless more are asked for. Floating-point sums, and so the last digits
of results, depend on the number of threads; a fixed number gives the same results whatever the machine's cores and
load. And threads that wait for each other are slow beside other work: by default they spin, and each operation takes a
time slice of the operating system if a core is busy.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sihg.errors import InputError

MAX_THREADS = 1024  # torch fails at some numbers, the system at others


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with this number of threads inside the block.

    Raises:
        InputError: The number is out of range.
    """
    if not 1 <= count <= MAX_THREADS:
        raise InputError("threads-range", threads=count, most=MAX_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
