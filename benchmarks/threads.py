"""Compare training with one thread, our default, and with two, beside busy processes: one per core but one.

A thread that waits for another spins by default (`OMP_WAIT_POLICY`); with a busy process on its core, the other one
gets a time slice of the system only now and then. Each training is a new process; all variants run in turn.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.timing import MIN_REPETITIONS, Report, SkipBenchmark, paired_ratio

VARIANTS: dict[str, tuple[int, dict[str, str]]] = {
    "1 thread": (1, {}),
    "2 threads, which sleep while they wait": (2, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "2 threads, which spin": (2, {}),
}
CODE = """
import time, torch
import sihg
from sihg.robust import data, models
train, _ = data.load("digits")
model = models.build("small-cnn", train.shape, 10)
begin = time.perf_counter()
sihg.fit(model, train.take(slice(500)), method="pgd", eps=0.25, steps=5, epochs=1, batch_size=50, threads={threads})
print(time.perf_counter() - begin)
"""


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Train with each variant in turn."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        raise SkipBenchmark("needs two cores")
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with busy_processes(cores - 1):
        for _ in range(min(repetitions, MIN_REPETITIONS)):
            for name, (threads, environment) in VARIANTS.items():
                seconds[name].append(train(threads, environment))
    one = seconds["1 thread"]
    ratios = {f"{name} over 1 thread": paired_ratio(seconds[name], one) for name in VARIANTS if name != "1 thread"}
    return Report(
        f"beside {cores - 1} busy processes on {cores} cores, one thread is not slower than two",
        all(ratio.median >= 1 for ratio in ratios.values()),
        {**ratios, "repetitions": len(one), "seed": 0},
        {"training": [{"variant": name, "seconds": median(found)} for name, found in seconds.items()]},
    )


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many processes busy inside the block."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def train(threads: int, environment: dict[str, str]) -> float:
    """Train in a new process; return the seconds of the training."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    command = [sys.executable, "-c", CODE.format(threads=threads)]
    done = subprocess.run(command, env={**inherited, **environment}, check=True, capture_output=True, text=True)
    return float(done.stdout)
