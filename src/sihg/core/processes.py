"""Processes that compute together, by torch.distributed: sums in one fixed order, and what all of them must know.

torchrun starts the processes; `join_processes` finds the others. Alone, every call returns at once. Sums are added in
the order of a binary tree over the lanes, wherever these are computed, so that they are bitwise the same for any number
of processes.
"""

import importlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from sihg.core._meeting import open_meeting, read_error, write_error
from sihg.errors import InputError, SihgError
from sihg.launch import end_with_launcher, is_launched, rank, world_size

SHARDS = 64  # of the samples; the number of lanes divides it, and the number of processes divides that
BUCKET_VALUES = 2**25  # summed at once
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13


class ProcessLostError(SihgError):
    """Raised when another process of the run has ended or does not answer."""


@dataclass(eq=False)
class Processes:
    """The processes of a run, as one of them sees them.

    Args:
        rank: The number of this process.
        size: The number of processes.
    Example:
        >>> ALONE.gather({"loss": 0.5}), ALONE.any([True, False])
        ([{'loss': 0.5}], [True, False])
    """

    rank: int = 0
    size: int = 1
    bytes_sent: int = 0  # by this process, without what the protocols add

    @property
    def is_first(self) -> bool:
        """Whether this process writes the tables and prints."""
        return self.rank == 0

    def own(self, lanes: int) -> list[int]:
        """Return the lanes that this process computes, in the order in which `sum_pairs` adds them."""
        return [self.rank + self.size * place for place in bit_reversed(lanes // self.size)]

    def sum(self, vector: Tensor) -> Tensor:
        """Return the sum of the vectors of all processes, added as by `sum_pairs`, the same on all."""
        if self.size == 1:
            return vector
        return torch.cat([self._sum_bucket(bucket) for bucket in vector.split(BUCKET_VALUES)])

    def _sum_bucket(self, vector: Tensor) -> Tensor:
        """Let each process add one slice of all vectors, then collect the slices."""
        width = -(-len(vector) // self.size)
        padded = torch.nn.functional.pad(vector, (0, width * self.size - len(vector)))
        slices = torch.empty_like(padded)
        total = torch.empty_like(padded)
        with lost_processes():
            dist.all_to_all_single(slices, padded)
            _all_gather(total, sum_pairs(slices.view(self.size, width)))
        self.bytes_sent += 2 * (self.size - 1) * width * vector.element_size()
        return total[: len(vector)]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in their order; a value is JSON."""
        if self.size == 1:
            return [value]
        return [json.loads(data) for data in self.gather_bytes(json.dumps(value).encode())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the bytes of all processes, in their order."""
        if self.size == 1:
            return [data]
        device = self._device()
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.size)]
        with lost_processes():
            dist.all_gather(sizes, torch.tensor([len(data)], device=device))
            longest = max(1, max(int(size) for size in sizes))
            own = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8).to(device)
            found = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(found, own)
        self.bytes_sent += (self.size - 1) * (longest + 8)
        return [t.cpu().numpy().tobytes()[: int(size)] for t, size in zip(found, sizes, strict=True)]

    def collect_bytes(self, data: bytes) -> list[bytes]:
        """Return the bytes of all processes, in their order, on the first process; on others nothing of the others."""
        if self.size == 1:
            return [data]
        sizes = self.gather(len(data))
        longest = max(1, *sizes)
        own = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8).to(self._device())
        found = [torch.empty_like(own) for _ in range(self.size)] if self.is_first else None
        with lost_processes():
            dist.gather(own, found)
        self.bytes_sent += 0 if self.is_first else longest
        if found is None:
            return [data if place == self.rank else b"" for place in range(self.size)]
        return [t.cpu().numpy().tobytes()[:size] for t, size in zip(found, sizes, strict=True)]

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Return, for each flag, whether it is true on any process."""
        return [any(column) for column in zip(*self.gather([bool(flag) for flag in flags]), strict=True)]

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors by those of the first process."""
        if self.size > 1:
            with lost_processes(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), 0)

    def wait(self) -> None:
        """Wait until all processes have come here."""
        self.gather(None)

    def agree(self, error: SihgError | None) -> None:
        """Raise an error on all processes if one of them has any; the first of these prints it."""
        texts = self.gather(None if error is None else [str(error), error.code])
        failed = next((place for place, text in enumerate(texts) if text is not None), None)
        if failed is None:
            return
        if error is None:
            error = SihgError.told(*texts[failed])
        error.printed_by = failed
        raise error

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block on all processes; an error on one of them is raised on all, at the end of the block."""
        error = None
        try:
            yield
        except ProcessLostError:
            raise
        except SihgError as found:
            error = found
        self.agree(error)

    @contextmanager
    def same(self) -> Iterator[None]:
        """Run a block whose errors, if any, are the same on all processes, so that the first one prints them."""
        try:
            yield
        except SihgError as error:
            if error.printed_by is None:
                error.printed_by = 0
            raise

    def _device(self) -> torch.device:
        return (
            torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
        )


ALONE = Processes()
_joined: list[Processes] = []  # by the blocks of `join_processes` that this process is in


def given_or_alone(processes: Processes | None) -> Processes:
    """Return the processes given; without any ALONE, or inside `join_processes` raise InputError."""
    if processes is None and any(joined.size > 1 for joined in _joined):
        raise InputError("processes-not-given", size=_joined[-1].size)
    return processes or ALONE


@contextmanager
def join_processes(device: str = "cpu", *, minutes: float = 10.0) -> Iterator[Processes]:
    """Find the other processes that torchrun has started with this one.

    Args:
        device: Where the run computes; on cuda, process r of a node takes its r-th GPU.
        minutes: How long to wait for another process before ProcessLostError.
    Yields:
        The processes; ALONE if torchrun has started only this one, or none.
    Raises:
        ProcessLostError: The others cannot be found.
        SihgError: An error that ended another process; the first such error is raised, and printed, everywhere alike.
    Example:
        >>> with join_processes() as processes:
        ...     processes.size
        1
    """
    if not is_launched():
        yield ALONE
        return
    end_with_launcher()
    if dist.is_initialized():  # by a loop of the user's own
        with _noted(Processes(dist.get_rank(), dist.get_world_size())) as processes:
            yield processes
        return
    if world_size() == 1:
        yield ALONE
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # Its functions have the group as a default argument. If torch imports it later, they keep the group and its threads
    # until the interpreter ends, which these sometimes abort.
    importlib.import_module("torch.distributed.nn.functional")
    processes, timeout = Processes(rank(), world_size()), timedelta(minutes=minutes)
    store = None
    try:
        with lost_processes():
            store = open_meeting(processes.rank, processes.size, timeout)
            backend = "nccl" if device.startswith("cuda") else "gloo"
            dist.init_process_group(backend, store=store, rank=rank(), world_size=world_size(), timeout=timeout)
        with _noted(processes):
            yield processes
        processes.wait()
    except SihgError as error:
        if error.printed_by is not None:
            raise
        raise _first_error(store, error) from error.__cause__
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _noted(processes: Processes) -> Iterator[Processes]:
    """Let `given_or_alone` know that these processes are joined."""
    _joined.append(processes)
    try:
        yield processes
    finally:
        _joined.remove(processes)


def _first_error(store: Store | None, error: SihgError) -> SihgError:
    """Return the error to end with, and say which process prints it: of processes with the same error the first one.

    A process that ends because another one did ends with that one's error.
    """
    error.printed_by = rank()
    if store is None:
        return error
    if not isinstance(error, ProcessLostError):
        writer, message, code = write_error(store, rank(), str(error), error.code)
        if (message, code) == (str(error), error.code):
            error.printed_by = writer
        return error
    if (found := read_error(store)) is None:
        return error
    told = SihgError.told(*found[1:])
    told.printed_by = found[0]
    return told


@contextmanager
def lost_processes() -> Iterator[None]:
    """Turn the errors of torch.distributed into ProcessLostError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise ProcessLostError("process-lost", reason=str(error).split("\n")[0]) from error


def check_lanes(lanes: int, size: int = 1) -> None:
    """Raise InputError unless `lanes` divides 64, and the number of processes divides `lanes`."""
    if not 1 <= lanes <= SHARDS or SHARDS % lanes:
        raise InputError("lanes-range", lanes=lanes, shards=SHARDS)
    if lanes % size:
        raise InputError("lanes-processes", lanes=lanes, processes=size)


def sum_pairs(rows: Tensor) -> Tensor:
    """Add 2^k rows as a binary tree: the first half to the second half, and so on.

    >>> sum_pairs(torch.tensor([[1.0], [2.0], [4.0], [8.0]]))  # (1 + 4) + (2 + 8)
    tensor([15.])
    """
    while len(rows) > 1:
        half = len(rows) // 2
        rows = rows[:half] + rows[half:]
    return rows[0]


def bit_reversed(count: int) -> list[int]:
    """Return 0 to count - 1, a power of two, in the order in which neighbours are added first by `sum_pairs`.

    >>> bit_reversed(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    order = [0]
    while len(order) < count:
        order = [2 * place for place in order] + [2 * place + 1 for place in order]
    return order
