"""Plan a training of MSI-HG on ImageNet: bytes, network, disk and time for 8 and 64 GPUs.

    python -m benchmarks.scaling_plan            # prints the table of docs/scaling.md
    python -m benchmarks.scaling_plan --check    # compares its formulas with bytes that are measured here

The table is arithmetic. What is assumed of the machines stands in `Machine`; everything else follows from the formats
of the memory, of checkpoints and of the sums over processes, which `--check` measures on small runs.
"""

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TAG_BYTES, FLAGS = 12, 2  # per row of the memory; per sum over processes
MAX_PROTOCOL = 0.02  # share that protocols may add to what is sent
CHECKPOINT_TAG_BYTES = 16  # per sample: epoch and checksum, of both generations
IMAGENET, SHAPE = 1_281_167, (3, 224, 224)
# ResNet-50: values, tensors, and values of its buffers (running mean and variance, and a counter for each of 53 layers)
WEIGHTS, TENSORS, BUFFERS = 25_557_032, 161, 53_120 + 53
T, EPOCHS = 5, 90
CASES = ((8, 1024), (64, 1024), (64, 8192))  # GPUs, and samples per step


@dataclass(frozen=True)
class Machine:
    """What is assumed of the hardware."""

    gpus_per_node: int = 8
    passes_per_second: float = 1250.0  # forward-backward passes of ResNet-50 per GPU and second, in bfloat16


def row_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes of a row of the memory in int8: a byte per value, padded to four, and its tag."""
    return -(-math.prod(shape) // 4) * 4 + TAG_BYTES


def sum_bytes(processes: int, weights: int, tensors: int, buffers: int) -> int:
    """Return the bytes that a process sends per step: its slices to the others, then its sum to the others."""
    values = weights + tensors + buffers + FLAGS
    return 2 * (processes - 1) * -(-values // processes) * 4


def plan(gpus: int, batch: int, machine: Machine = Machine()) -> dict[str, str]:  # noqa: B008
    """Return the rows of the table for a number of GPUs and samples per step."""
    nodes, local = -(-gpus // machine.gpus_per_node), min(gpus, machine.gpus_per_node)
    rows = -(-IMAGENET // gpus)
    memory = 2 * rows * row_bytes(SHAPE)
    step = batch / gpus * (T + 1) / machine.passes_per_second
    moved = batch / gpus * row_bytes(SHAPE)
    sent = sum_bytes(gpus, WEIGHTS, TENSORS, BUFFERS)
    outside = (gpus - gpus / nodes) / max(1, gpus - 1)  # share of the other processes that are on other nodes
    per_node = sent * local * outside
    epoch = -(-IMAGENET // batch) * step
    return {
        "nodes": f"{nodes}",
        "lanes, at least": f"{gpus}",
        "rows of the memory per GPU": f"{rows:,}",
        "memory, both generations, per GPU": f"{memory / 1e9:.1f} GB",
        "memory, both generations, per node": f"{memory * local / 1e9:.1f} GB",
        "samples per step and GPU": f"{batch // gpus}",
        "time of a step": f"{step * 1000:.0f} ms",
        "memory in files: read, and written, per node": f"{moved * local / step / 1e6:.0f} MB/s",
        "sent per step and GPU": f"{sent / 1e6:.0f} MB",
        "sent over the network per step and node": f"{per_node / 1e6:.0f} MB",
        "network per node": f"{8 * per_node / step / 1e9:.1f} Gbit/s",
        "checkpoint of the memory in files, all GPUs": f"{IMAGENET * CHECKPOINT_TAG_BYTES / 1e6:.0f} MB",
        "checkpoint of the memory in RAM, per GPU": f"{rows * (math.prod(SHAPE) + 16) / 1e9:.1f} GB",
        "time of an epoch": f"{epoch / 60:.1f} min",
        f"time of {EPOCHS} epochs": f"{EPOCHS * epoch / 3600:.1f} h",
    }


def table() -> str:
    """Return the table in Markdown."""
    columns = [plan(gpus, batch) for gpus, batch in CASES]
    heads = [f"{gpus} GPUs, batch {batch:,}" for gpus, batch in CASES]
    lines = [f"| ImageNet, ResNet-50, T = {T}, memory in int8 | {' | '.join(heads)} |", "|---" * (len(CASES) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in columns[0]]
    return "\n".join(lines)


# ---- measured


def check() -> list[tuple[str, int, int, float]]:
    """Return what the formulas say, what is measured, and which share more is allowed."""
    import torch

    from sihg.robust.memory import PerturbationMemory

    found = [
        (f"a row of shape {shape}", row_bytes(shape), PerturbationMemory(1, shape, 0.1).nbytes // 2, 0.0)
        for shape in (SHAPE, (3, 32, 32), (1, 5, 3))
    ]
    n, shape = 100, (3, 32, 32)
    with TemporaryDirectory() as folder:
        memory = PerturbationMemory(n, shape, 0.1, folder=Path(folder) / "memory", shards=4)
        files = sum(path.stat().st_size for path in (Path(folder) / "memory").glob("*.bin"))
        found.append((f"files of {n} rows, both generations", 2 * n * row_bytes(shape), files, 0.0))
        tags = memory.file_state(0)["tags"]
        found.append(("tags in a checkpoint", n * CHECKPOINT_TAG_BYTES, tags.numel() * tags.element_size(), 0.0))
        state = memory.state(0)
        held = sum(state[name].numel() * state[name].element_size() for name in ("values", "tags"))
        found.append(("the memory in a checkpoint", n * (math.prod(shape) + 16), held, 0.0))
    model = torch.nn.Sequential(*layers())
    counts = (sum(p.numel() for p in model.parameters()), len(list(model.parameters())))
    buffers = sum(b.numel() for b in model.buffers())
    for processes in (2, 4):
        formula = sum_bytes(processes, *counts, buffers)
        measured = measure_sent(processes)
        found.append((f"bytes sent by one of {processes} processes per step", formula, measured, MAX_PROTOCOL))
    return found


def layers() -> "list[torch.nn.Module]":
    """Return the layers of the model of which the bytes sent are measured."""
    from torch import nn

    return [nn.Linear(64, 1024), nn.BatchNorm1d(1024), nn.Linear(1024, 512), nn.Linear(512, 3)]


CODE = r"""
import os, socket, struct, torch
from benchmarks.scaling_plan import layers
from sihg.core.processes import join_processes
from sihg.robust.data.samples import as_samples
from sihg.robust.training.config import Settings
from sihg.robust.training.events import StepDone
from sihg.robust.training.preflight import preflight
from sihg.robust.training.trainer import Trainer

def sent():  # by all TCP connections of this process, as the kernel counts it
    total = 0
    for name in os.listdir("/proc/self/fd"):
        if not os.path.lexists(link := f"/proc/self/fd/{name}") or not os.readlink(link).startswith("socket:"):
            continue
        connection = socket.socket(fileno=int(name))
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += struct.unpack_from("Q", info, 200)[0]  # tcpi_bytes_sent
        except (OSError, struct.error):
            pass  # not TCP
        finally:
            connection.detach()
    return total

torch.manual_seed(0)
samples = as_samples((torch.rand(1024, 64), torch.arange(1024) % 3))
values = dict(method="natural", epochs=1, batch_size=64, eps=0.1, lanes=4)
with join_processes() as processes:
    model = torch.nn.Sequential(*layers())
    trainer = Trainer(preflight(model, samples, Settings().with_values(values)), processes=processes)
    counts = [sent() for event in trainer.events() if isinstance(event, StepDone)]
    if processes.is_first:
        print((counts[-1] - counts[1]) // (len(counts) - 2), flush=True)
"""


def measure_sent(processes: int) -> int:
    """Return the bytes that a process sends per step of a small model."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--no-python"]
    command = [sys.executable, *launch, sys.executable, "-c", CODE]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(found.stdout.strip().splitlines()[-1]))


def main() -> int:
    """Print the table, or compare the formulas with what is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling_plan", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare the formulas with measured bytes")
    if not parser.parse_args().check:
        print(table())
        return 0
    found = check()
    for what, formula, measured, _ in found:
        print(f"{what}: formula {formula:,}, measured {measured:,} bytes")
    return 0 if all(formula <= measured <= formula * (1 + more) for _, formula, measured, more in found) else 1


if __name__ == "__main__":
    sys.exit(main())
