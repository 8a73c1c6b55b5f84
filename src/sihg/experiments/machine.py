"""Describe this machine: versions, processor, devices, data sets, free space, advice. `sihg doctor` prints it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from sihg.experiments.advice import advise
from sihg.experiments.grid import count_cores
from sihg.store.schema import Environment

PROBE_SECONDS = 120
PROBE = """
import torch
x = torch.rand(2, 3, 8, 8).to(torch.{kind}).requires_grad_()
torch.nn.Conv2d(3, 4, 3).to(torch.{kind})(x).float().sum().backward()
"""
SPEED = """
import statistics, time, torch
torch.set_num_threads(1)
conv = torch.nn.Conv2d(32, 32, 3, padding=1)
x = torch.rand(32, 32, 16, 16, requires_grad=True)
ratios = []
for _ in range(6):
    seconds = {}
    for is_low in (False, True):
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            conv(conv(conv(x))).float().sum().backward()
        seconds[is_low] = time.perf_counter() - begin
    ratios.append(seconds[False] / seconds[True])
print(statistics.median(ratios[1:]))
"""


class Machine(msgspec.Struct, frozen=True, kw_only=True, rename=lambda name: name.replace("_", " ")):
    """What this machine has."""

    versions_and_hardware: Environment
    threads: int
    load: float | None  # processes that computed in the last minute
    instructions: str  # of the processor
    convolutions: dict[str, str]  # whether they work, by number format
    bfloat16_speedup: float | None  # of a small network on one thread of the CPU; None if it does not work
    devices: tuple[str, ...]
    data_folder: str
    data: dict[str, str]  # the state of each data set
    free_gigabytes: dict[str, float]
    advice: tuple[str, ...]  # what would make it faster


def examine_machine(data_dir: Path | None = None) -> Machine:
    """Collect versions, devices, data sets and free space; `data_dir` is the folder of the data files."""
    import torch

    from sihg.robust.data.locations import data_folder
    from sihg.robust.data.overview import overview
    from sihg.store.run_folder import describe_environment

    folder = data_folder(data_dir)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    devices = _devices()
    speedup = measure_bfloat16()
    data: dict[str, str] = {row.name: row.state for row in overview(data_dir)}
    free = {"here": _free_gigabytes(Path.cwd()), "data folder": _free_gigabytes(folder)}
    return Machine(
        versions_and_hardware=describe_environment(),
        threads=torch.get_num_threads(),
        load=None if load is None else round(load, 1),
        instructions=torch.backends.cpu.get_cpu_capability(),
        convolutions={kind: probe(PROBE.format(kind=kind)) for kind in ("bfloat16", "half")},
        bfloat16_speedup=speedup,
        devices=devices,
        data_folder=str(folder),
        data=data,
        free_gigabytes=free,
        advice=advise(
            cores=count_cores(),
            load=load,
            bfloat16_speedup=speedup,
            devices=devices,
            data=data,
            free_gigabytes=free,
        ),
    )


def measure_bfloat16() -> float | None:
    """Return the time of a small network's pass in float32 over that in bfloat16; None if bfloat16 does not work.

    It runs in its own process: a missing instruction would kill this one.
    """
    try:
        done = _run(SPEED)
    except subprocess.TimeoutExpired:
        return None
    return round(float(done.stdout), 2) if done.returncode == 0 else None


def probe(code: str) -> str:
    """Say whether Python code works here. It runs in its own process: a missing instruction would kill this one.

    >>> probe("raise ValueError('no')")
    'fail (ValueError: no)'
    """
    try:
        done = _run(code)
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_SECONDS} s"
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    last_line = done.stderr.strip().split("\n")[-1] or "no message"
    return "work" if done.returncode == 0 else f"fail ({last_line})"


def _run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
    )


def _devices() -> tuple[str, ...]:
    import torch

    cuda = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return ("cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else []))


def _free_gigabytes(folder: Path) -> float:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return round(shutil.disk_usage(existing).free / 1e9, 1)
