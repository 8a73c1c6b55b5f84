"""Divide the cells of a grid over the processes that torchrun has started.

The first process makes the folder, shows the progress and summarises. The others wait for the folder, run their cells
and print nothing. A process that dies ends the waiting of the others: their connection breaks, and torchrun stops them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sihg.core.processes import Processes

MAX_WAIT_MINUTES = 365.0 * 24 * 60  # until the slowest process has run its cells
NAMES = (  # variables of torchrun; a process that is no part of the group must not see them
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
PREFIX = "TORCHELASTIC_"


@contextmanager
def joined_processes() -> Iterator["Processes"]:
    """Join the processes of torchrun as a training does, except that each may be busy with its cells for long."""
    from sihg.core.processes import join_processes

    with join_processes(minutes=MAX_WAIT_MINUTES) as processes:
        yield processes


def hear_first(processes: "Processes", is_ready: bool = True) -> bool:
    """Wait for the first process; return what it says about whether the folder is ready."""
    return bool(processes.gather(is_ready)[0])


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
