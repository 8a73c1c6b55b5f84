"""What a training step of each method costs on SVHN with preact-resnet8: passes, time, bytes.

    python -m benchmarks.method_costs

Passes are counted by the methods. CPU time is that of the process, divided by that of natural training. Bytes are those
of the perturbation memory of all training images (int8), and the most that the process held while it trained.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.timing import Row, format_table
from sihg.core.draw import generator
from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import Batch
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import build_method
from sihg.robust.methods.memory_method import MemoryMethod
from sihg.robust.models import build

SHAPE, CLASSES, SAMPLES, BATCH, EPS, SEED = (3, 32, 32), 10, 73_257, 100, 4 / 255, 0
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "natural": ("natural", {}),
    "fgsm": ("fgsm", {}),
    "fast": ("fast", {}),
    "n-fgsm": ("n-fgsm", {}),
    "free, m = 8": ("free", {}),
    "pgd, T = 10": ("pgd", {}),
    "dat, T = 10": ("dat", {}),
    "yopo-10-5": ("yopo", {}),
    "trades, T = 10": ("trades", {}),
    "mart, T = 10": ("mart", {}),
    "atta, T = 1": ("atta", {}),
    "fgsm-pgi": ("fgsm-pgi", {}),
    "msi-hg, T = 5": ("msi-hg", {}),
    "msi-hg, T = 10": ("msi-hg", {"steps": 10}),
    "pgd, T = 10, AWP": ("pgd", {"awp_gamma": 0.01}),
}


class Cost(NamedTuple):
    """Of one step: passes and CPU seconds per sample; bytes of the memory, and of the whole process at most."""

    passes: float
    seconds: float
    memory: int
    peak: int


def measure(name: str, steps: int) -> Cost:
    """Train a few steps in this process, which must be a new one."""
    torch.set_num_threads(1)
    kind, options = METHODS[name]
    method = build_method(kind, **({"eps": EPS} if kind != "natural" else {}), **options)
    model = build("preact-resnet8", SHAPE, CLASSES, seed=SEED)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    optimizer = HybridGradient(inner, theta=float(kind == "msi-hg"))
    stored = 0
    if isinstance(method, MemoryMethod):
        stored = PerturbationMemory(SAMPLES, method.row_shape(SHAPE), EPS).nbytes
        method.memory = PerturbationMemory(BATCH, method.row_shape(SHAPE), EPS)
    draw = generator(SEED, "costs")
    x, y = torch.rand(BATCH, *SHAPE, generator=draw), torch.randint(CLASSES, (BATCH,), generator=draw)
    passes, seconds = 0.0, 0.0
    for step in range(-1, steps):  # the first is not timed
        begin = time.process_time()
        now = Batch(x=x, y=y, index=torch.arange(BATCH), epoch=step + 1, step=step + 1, time=1.0, size=BATCH, seed=SEED)
        log = method.step(model, now, optimizer)
        passes += float(log.passes) * (step >= 0)
        seconds += (time.process_time() - begin) * (step >= 0)
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return Cost(passes / steps / BATCH, seconds / steps / BATCH, stored, 1024 * int(fields["VmHWM"].split()[0]))


def table(steps: int) -> str:
    """Measure all methods, each in a new process, and return the table."""
    os.environ["OMP_NUM_THREADS"] = "1"
    fresh = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    rows: list[Row] = []
    natural = 0.0
    for name in METHODS:
        cost = fresh.submit(measure, name, steps).result()
        natural = natural or cost.seconds
        rows.append(
            {
                "method": name,
                "passes per sample and epoch": f"{cost.passes:.1f}",
                "CPU time / natural": f"{cost.seconds / natural:.1f}",
                "memory, MB": f"{cost.memory / 1e6:.0f}",
                "peak of the process, without the memory, MB": f"{cost.peak / 1e6:.0f}",
            }
        )
    return format_table(rows)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method_costs", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="timed steps per method (default: 3)")
    print(table(parser.parse_args().steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
