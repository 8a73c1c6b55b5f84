"""Compare an MSI-HG step with the memory in RAM and in files of which nothing is in RAM.

Before every step, all pages of the files leave RAM. A store larger than RAM is never worse off: some of its pages stay.
What is timed are the steps. Before each eviction the system writes changed pages to the disk, which is not timed: in a
training it does so in the background.
"""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.optim import SGD

from benchmarks.timing import Measurement, Report, Row, SkipBenchmark, time_interleaved, time_once
from sihg.core.draw import generator
from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import Batch
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG
from sihg.robust.models import build

SEED = 0
SAMPLES, SHAPE, BATCH, T, EPS = 50000, (3, 32, 32), 100, 5, 8 / 255  # as for CIFAR-10
MODEL = "preact-resnet8"
EPOCH = 2  # of the timed steps: generation 1 is read, generation 0 written over
STEPS = 4  # per repetition
SECONDS = 240.0  # time limit
MAX_RATIO = 1.10
KINDS = {"RAM": (False, False), "files": (True, True), "files, not read ahead": (True, False)}  # in files? prefetch?


def run(repetitions: int, out: Path | None) -> Report:
    """Time steps with each kind of memory in turn."""
    if not hasattr(os, "posix_fadvise"):
        raise SkipBenchmark("this system cannot be told to drop files from RAM")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out) as folder:
        memories = {kind: make_memory(Path(folder) / kind if on_disk else None) for kind, (on_disk, _) in KINDS.items()}
        calls = {kind: steps(memories[kind], ahead=ahead) for kind, (_, ahead) in KINDS.items()}
        timings = time_interleaved(calls, repetitions, SECONDS)
    if not any(timings["files"].values):
        raise SkipBenchmark("the files were never read from a disk: give a folder on a disk (--out DIR)")
    rows: list[Row] = [
        {
            "memory in": kind,
            "step, ms": timing.milliseconds(STEPS),
            "over RAM": timing.over(timings["RAM"])[0],
            "CPU time over RAM": timing.over(timings["RAM"])[1],
            "MB read from the disk per step": sum(timing.values) / len(timing.values) / STEPS / 1e6,
        }
        for kind, timing in timings.items()
    ]
    headline = timings["files"].over(timings["RAM"])[0]
    return Report(
        f"with the memory in files and none of it in RAM, a step of MSI-HG takes at most {MAX_RATIO} times that in RAM",
        headline.median <= MAX_RATIO,
        {
            "files over RAM": headline,
            "model": f"{MODEL}, batch {BATCH}, T = {T}, {SAMPLES} samples of {SHAPE} in the memory (int8)",
            "MB of the files": memories["files"].nbytes / 1e6,
            "steps per repetition": STEPS,
            "repetitions": len(timings["RAM"].wall),
            "seed": SEED,
        },
        {"one step": rows},
    )


def make_memory(folder: Path | None) -> PerturbationMemory:
    """Return a memory in which every sample was written in epochs 0 and 1."""
    memory = PerturbationMemory(SAMPLES, SHAPE, EPS, folder=folder)
    delta = (torch.rand(1000, *SHAPE, generator=generator(SEED, "delta")) * 2 - 1) * EPS
    for index in torch.arange(SAMPLES).split(1000):
        for epoch in range(2):
            memory.write(index, epoch, delta[: len(index)])
    return memory


def steps(memory: PerturbationMemory, *, ahead: bool) -> Callable[[], Measurement]:
    """Return a callable that makes STEPS training steps on new samples and times them."""
    model = build(MODEL, SHAPE, 10, seed=SEED)
    optimizer = HybridGradient(SGD(model.parameters(), lr=1e-4, momentum=0.9))
    method = MSIHG(eps=EPS, steps=T, memory=memory)
    done = 0

    def step() -> None:
        if ahead:
            memory.prefetch(batch_indices(done + 1), EPOCH)
        method.step(model, make_batch(done), optimizer)

    def train() -> Measurement:
        nonlocal done
        measured = []
        for _ in range(STEPS):
            evict(memory)
            before = bytes_read()
            timed = time_once(step)
            done += 1
            measured.append(timed._replace(value=bytes_read() - before))
        return Measurement(*(sum(column) for column in zip(*measured, strict=True)))

    return train


def batch_indices(number: int) -> torch.Tensor:
    """Return the samples of a batch, from the whole data set."""
    order = torch.randperm(SAMPLES, generator=generator(SEED, "order", number * BATCH // SAMPLES))
    first = number * BATCH % SAMPLES
    return order[first : first + BATCH]


def make_batch(number: int) -> Batch:
    """Return a batch of random images."""
    draw = generator(SEED, "images", number)
    x, y = torch.rand(BATCH, *SHAPE, generator=draw), torch.randint(10, (BATCH,), generator=draw)
    return Batch(x=x, y=y, index=batch_indices(number), epoch=EPOCH, step=number, size=BATCH, seed=SEED)


def evict(memory: PerturbationMemory) -> None:
    """Write the files of a memory to the disk and drop all their pages from RAM."""
    if memory.folder is None:
        return
    memory.flush()
    for generation in memory._shards._maps:
        for rows in generation.values():
            mapped: mmap.mmap = rows._mmap  # type: ignore[attr-defined]
            mapped.madvise(mmap.MADV_DONTNEED)  # pages that a process maps would stay
    for path in memory.folder.glob("*.bin"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    """Return the bytes that this process has had read from a disk; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))
