"""Read the rows of the next batches while the model computes: in threads, or in processes for a torch Dataset."""

import signal
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sihg.errors import InputError
from sihg.robust.data.lazy_rows import Index, LazyRows

AHEAD = 2  # batches per worker that wait for the model


@dataclass(frozen=True)
class _Read:
    """Reads a batch, in whatever thread or process it is called."""

    rows: LazyRows
    seed: int
    epoch: int
    floats: bool

    def __call__(self, batch: Index) -> Tensor:
        return self.rows.read(batch, self.seed, self.epoch, floats=self.floats)


def read_ahead(
    rows: LazyRows, batches: Sequence[Tensor], seed: int = 0, epoch: int = 0, *, floats: bool = True
) -> Iterator[Tensor]:
    """Yield the rows of each batch in order; those of the next batches are read meanwhile.

    A Dataset's items may draw from the generators of the process, which the model uses too. So they are read in
    processes of their own or, without workers, between the steps.
    """
    read = _Read(rows, seed, epoch, floats)
    if not rows.source.runs_user_code:
        return _read_in_threads(read, batches, max(1, rows.workers))
    return _read_in_processes(read, batches) if rows.workers else map(read, batches)


def _read_in_threads(read: _Read, batches: Sequence[Tensor], threads: int) -> Iterator[Tensor]:
    waiting: deque[Future[Tensor]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="sihg-read") as pool:
        try:
            for batch in batches:
                waiting.append(pool.submit(read, batch))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Jobs(Dataset["Tensor | InputError"]):
    """Reads one batch per item. An error is returned, since a loader would replace it by one with another text."""

    def __init__(self, read: _Read) -> None:
        self.read = read

    def __getitem__(self, batch: list[int]) -> "Tensor | InputError":
        try:
            return self.read(batch)
        except InputError as error:
            return error


def _read_in_processes(read: _Read, batches: Sequence[Tensor]) -> Iterator[Tensor]:
    loader = DataLoader(
        _Jobs(read),
        sampler=[batch.tolist() for batch in batches],  # an item is a whole batch
        batch_size=None,
        collate_fn=_unchanged,
        num_workers=read.rows.workers,
        prefetch_factor=AHEAD,
        worker_init_fn=_ignore_interrupts,
        generator=torch.Generator(),  # else a number is drawn from the generator of the process
    )
    found = iter(loader)
    while True:
        try:
            x = next(found)
        except StopIteration:
            return
        except RuntimeError as error:  # a worker that was killed
            raise InputError("reader-died", name=read.rows.name, error=str(error).split("\n")[0]) from error
        if isinstance(x, InputError):
            raise x
        yield x


def _unchanged(item: object) -> object:
    return item


def _ignore_interrupts(_worker: int) -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the process that trains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
