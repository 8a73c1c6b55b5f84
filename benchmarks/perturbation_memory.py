"""Measure the share of an MSI-HG training step that reading and writing the perturbation memory takes."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.optim import SGD

from benchmarks.timing import Report, Row, Value, time_interleaved
from sihg.core.draw import generator
from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import Batch
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG
from sihg.robust.models import build

SEED = 0
SAMPLES, SHAPE, BATCH, T, EPS = 60000, (1, 28, 28), 150, 5, 0.4  # as for MNIST
STEPS = 4  # per repetition
SECONDS = 4.0  # time limit per kind of memory
MAX_SHARE = 0.03  # of a step, for int8
SHARES = ("share of a step", "share of CPU time")
KINDS = {"int8": False, "fp16": False, "fp32": False, "int8, files": True, "fp32, files": True}  # in files?


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Compare the time of reading and writing with that of whole steps on the same samples."""
    with TemporaryDirectory() as folder:
        rows = [measure(kind, Path(folder) / kind if on_disk else None, repetitions) for kind, on_disk in KINDS.items()]
    headline = rows[0]["share of a step"]
    assert isinstance(headline, tuple)
    return Report(
        f"reading and writing the memory takes at most {MAX_SHARE:.0%} of an MSI-HG step (int8, in RAM)",
        headline.median <= MAX_SHARE,
        {
            "measured": format_percent(headline),
            "model": f"small-cnn, batch {BATCH}, T = {T}, {SAMPLES} samples of {SHAPE} in the memory",
            "steps per repetition": STEPS,
            "seed": SEED,
        },
        {"memory": [{**row, **{column: format_percent(row[column]) for column in SHARES}} for row in rows]},
    )


def format_percent(share: Value) -> str:
    """Format a share in percent: a ratio with two decimals would be too coarse."""
    assert isinstance(share, tuple)
    return f"{100 * share.median:.2f} % ({100 * share.smallest:.2f}-{100 * share.largest:.2f})"


def measure(kind: str, folder: Path | None, repetitions: int) -> Row:
    """Time one kind of memory; files are in the page cache, as for any small data set."""
    memory = PerturbationMemory(SAMPLES, SHAPE, EPS, dtype=kind.split(",")[0], folder=folder)
    batches = [make_batch(number) for number in range(STEPS)]
    for item in batches:  # fills epoch 0, which the timed steps read
        memory.write(item.index, 0, (item.x - 0.5) * EPS)
    calls = {"step": steps(memory, batches), "memory": reads_and_writes(memory, batches)}
    timings = time_interleaved(calls, repetitions, SECONDS)
    return {
        "kept as": kind,
        "bytes per value": memory.bytes_per_value,
        "read + write, ms": timings["memory"].milliseconds(STEPS),
        "step, ms": timings["step"].milliseconds(STEPS),
        "share of a step": timings["memory"].over(timings["step"])[0],
        "share of CPU time": timings["memory"].over(timings["step"])[1],
        "repetitions": len(timings["step"].wall),
    }


def make_batch(number: int) -> Batch:
    """Return a batch of epoch 1 with samples from the whole data set."""
    draw = generator(SEED, "memory", number)
    index = torch.randperm(SAMPLES, generator=draw)[:BATCH]
    x, y = torch.rand(BATCH, *SHAPE, generator=draw), torch.randint(10, (BATCH,), generator=draw)
    return Batch(x=x, y=y, index=index, epoch=1, step=number, time=1.0, size=BATCH, seed=SEED)


def steps(memory: PerturbationMemory, batches: list[Batch]) -> Callable[[], None]:
    """Return a callable that makes a training step on each batch."""
    model = build("small-cnn", SHAPE, 10, seed=SEED)
    optimizer = HybridGradient(SGD(model.parameters(), lr=1e-4, momentum=0.9))
    method = MSIHG(eps=EPS, steps=T, memory=memory)

    def train() -> None:
        for batch in batches:
            method.step(model, batch, optimizer)

    return train


def reads_and_writes(memory: PerturbationMemory, batches: list[Batch]) -> Callable[[], None]:
    """Return a callable that reads and writes each batch once, as the training steps do."""

    def read_and_write() -> None:
        for batch in batches:
            memory.write(batch.index, 1, memory.read(batch.index, 1))

    return read_and_write
