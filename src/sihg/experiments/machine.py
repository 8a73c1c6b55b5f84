"""Describe this machine: versions, processor, devices, data sets and free space. `sihg doctor` prints it."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from sihg.store.schema import Environment

PROBE_SECONDS = 120
PROBE = """
import torch
x = torch.rand(2, 3, 8, 8).to(torch.{kind}).requires_grad_()
torch.nn.Conv2d(3, 4, 3).to(torch.{kind})(x).float().sum().backward()
"""


class Machine(msgspec.Struct, frozen=True, kw_only=True, rename=lambda name: name.replace("_", " ")):
    """What this machine has."""

    versions_and_hardware: Environment
    threads: int
    instructions: str  # of the processor
    convolutions: dict[str, str]  # whether they work, by number format
    devices: tuple[str, ...]
    data_folder: str
    data: dict[str, str]  # the state of each data set
    free_gigabytes: dict[str, float]


def examine_machine(data_dir: Path | None = None) -> Machine:
    """Collect versions, devices, data sets and free space; `data_dir` is the folder of the data files."""
    import torch

    from sihg.robust.data.locations import data_folder
    from sihg.robust.data.overview import overview
    from sihg.store.run_folder import describe_environment

    folder = data_folder(data_dir)
    return Machine(
        versions_and_hardware=describe_environment(),
        threads=torch.get_num_threads(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        convolutions={kind: probe(PROBE.format(kind=kind)) for kind in ("bfloat16", "half")},
        devices=_devices(),
        data_folder=str(folder),
        data={row.name: row.state for row in overview(data_dir)},
        free_gigabytes={"here": _free_gigabytes(Path.cwd()), "data folder": _free_gigabytes(folder)},
    )


def probe(code: str) -> str:
    """Say whether Python code works here. It runs in its own process: a missing instruction would kill this one.

    >>> probe("raise ValueError('no')")
    'fail (ValueError: no)'
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_SECONDS} s"
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    last_line = done.stderr.strip().split("\n")[-1] or "no message"
    return "work" if done.returncode == 0 else f"fail ({last_line})"


def _devices() -> tuple[str, ...]:
    import torch

    cuda = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return ("cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else []))


def _free_gigabytes(folder: Path) -> float:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return round(shutil.disk_usage(existing).free / 1e9, 1)
