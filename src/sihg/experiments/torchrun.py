"""Divide the cells of a grid over the processes that torchrun has started.

The first process makes the folder, shows the progress and summarises. The others wait for the folder, run their cells
and print nothing. A process that dies ends the waiting of the others: their connection breaks, and torchrun stops them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from sihg.errors import InputError

MAX_WAIT = timedelta(days=365)  # until the slowest process has run its cells
NAMES = (  # variables of torchrun; a process that is no part of the group must not see them
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
PREFIX = "TORCHELASTIC_"

T = TypeVar("T")


class Processes:
    """The processes of torchrun, of which this is number `rank` of `size`; without torchrun the only one."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.has_started = False

    @property
    def is_first(self) -> bool:
        """Whether this process makes the folder and shows the results."""
        return self.rank == 0

    def own(self, items: Sequence[T]) -> list[T]:
        """Return the items of this process: number k belongs to process k mod `size`.

        >>> Processes(1, 3).own("abcdefgh")
        ['b', 'e', 'h']
        """
        return list(items[self.rank :: self.size])

    def start(self, is_ready: bool = True) -> bool:
        """Wait for the first process; return whether it says that the folder is ready."""
        self.has_started = True
        return self.exchange(is_ready)[0]

    def exchange(self, value: T) -> list[T]:
        """Return the values of all processes, in order; wait for the slowest.

        Raises:
            InputError: If another process has died.
        """
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(found, value)
        except RuntimeError as error:  # the connection is closed
            raise InputError("grid-process-lost", size=self.size) from error
        return found


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Join the processes of torchrun, if it has started this one. The others end if the first one ends early."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=MAX_WAIT)
    processes = Processes(dist.get_rank(), dist.get_world_size())
    try:
        yield processes
    finally:
        if processes.is_first and not processes.has_started:
            with suppress(InputError):
                processes.start(is_ready=False)
        dist.destroy_process_group()


def environment_of_a_cell() -> dict[str, str]:
    """Return the environment for the process of a cell: without torchrun, and with one of the GPUs of this machine."""
    found = {name: value for name, value in os.environ.items() if name not in NAMES and not name.startswith(PREFIX)}
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
        import torch

        if count := torch.cuda.device_count():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            number = int(os.environ["LOCAL_RANK"]) % count
            found["CUDA_VISIBLE_DEVICES"] = visible[number] if len(visible) > number and visible[0] else str(number)
    return found
