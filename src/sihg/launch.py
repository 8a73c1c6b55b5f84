"""What torchrun says about this process, by its environment variables. Needs no torch."""

import ctypes
import os
import platform
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # in linux/prctl.h


def rank() -> int:
    """Return the number of this process among all processes of the launch; 0 if it was started alone."""
    return int(os.environ.get("RANK", "0")) if is_launched() else 0


def world_size() -> int:
    """Return the number of processes of the launch; 1 if this process was started alone."""
    return int(os.environ.get("WORLD_SIZE", "1")) if is_launched() else 1


def first_on_machine() -> int:
    """Return the number of the first process of the launch on this machine."""
    local = os.environ.get("LOCAL_RANK", "0")
    return rank() - int(local) if is_launched() and local.isdigit() else 0


def local_world_size() -> int:
    """Return the number of processes of the launch on this machine; 1 if this process was started alone."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "1") if is_launched() else "1"
    return max(1, int(given)) if given.isdigit() else 1


def is_launched() -> bool:
    """Return whether torchrun, or a launcher that sets the same variables, started this process."""
    return all(os.environ.get(name, "").isdigit() for name in ("RANK", "WORLD_SIZE")) and "MASTER_ADDR" in os.environ


def launch_id() -> str:
    """Return what tells this launch from others and is the same after every restart by torchrun; "" without torchrun.

    torchrun's default id is "none" for all launches; then its process tells them apart.
    """
    given = os.environ.get("TORCHELASTIC_RUN_ID", "") if is_launched() else ""
    if given != "none":
        return given
    return f"none, started by process {os.getppid()} on {platform.node()}, {_start_of(os.getppid())} ticks after boot"


def end_with_launcher() -> None:
    """Let the system kill this process when torchrun is killed, so that no two attempts run at the same time."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def _start_of(process: int) -> str:
    """Return when a process was started, since process numbers are used again; "?" where that cannot be told."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "?"
