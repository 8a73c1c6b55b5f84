"""What torchrun says about this process, by its environment variables. Needs no torch."""

import os
import platform


def rank() -> int:
    """Return the number of this process among all processes of the launch; 0 if it was started alone."""
    return int(os.environ.get("RANK", "0")) if is_launched() else 0


def world_size() -> int:
    """Return the number of processes of the launch; 1 if this process was started alone."""
    return int(os.environ.get("WORLD_SIZE", "1")) if is_launched() else 1


def is_launched() -> bool:
    """Return whether torchrun, or a launcher that sets the same variables, started this process."""
    return all(os.environ.get(name, "").isdigit() for name in ("RANK", "WORLD_SIZE")) and "MASTER_ADDR" in os.environ


def launch_id() -> str:
    """Return what tells this launch from others and is the same after every restart by torchrun; "" if alone.

    torchrun's default id is "none" for all launches; then its process tells them apart.
    """
    if not is_launched():
        return ""
    given = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return given if given != "none" else f"none, started by process {os.getppid()} on {platform.node()}"
