"""One thread that reads rows ahead and writes rows behind, in the order of the calls."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from torch import Tensor

from sihg.robust.memory._row_format import Index

MAX_WRITES = 4  # that wait; more would only take RAM where the disk is the bottleneck
MAX_READS = 64  # kept for a `read`


class Behind:
    """Runs jobs one after the other on a thread of its own; the failure of a write is raised by the next call.

    The interpreter waits for the jobs before it exits; there are few.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None  # made when first needed
        self._writes: deque[Future[None]] = deque()
        self._reads: dict[tuple[int, bytes], tuple[Index, Future[Tensor]]] = {}

    def write(self, where: Index, job: Callable[[], None]) -> None:
        """Run a job that writes these samples; forget what was read of them before."""
        self._reads = {key: read for key, read in self._reads.items() if not np.isin(read[0], where).any()}
        while self._writes and (len(self._writes) >= MAX_WRITES or self._writes[0].done()):
            self._writes.popleft().result()
        self._writes.append(self._submit(job))

    def read(self, where: Index, epoch: int, job: Callable[[], Tensor]) -> None:
        """Run a job that reads these samples for an epoch, after the writes so far."""
        self._reads[epoch, where.tobytes()] = where, self._submit(job)
        if len(self._reads) > MAX_READS:
            del self._reads[next(iter(self._reads))]

    def take(self, where: Index, epoch: int) -> Tensor | None:
        """Return what was read ahead of exactly these samples, once; None if nothing was. Raise what its job raised."""
        found = self._reads.pop((epoch, where.tobytes()), None)
        return None if found is None else found[1].result()

    def wait(self) -> None:
        """Wait for all writes; raise what one of them raised."""
        writes, self._writes = self._writes, deque()
        for write in writes:
            write.result()

    def forget(self) -> None:
        """Forget what was read ahead, once the writes are done."""
        self.wait()
        self._reads.clear()

    def _submit(self, job: Callable[[], Any]) -> Future[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sihg-memory")
        return self._thread.submit(job)
