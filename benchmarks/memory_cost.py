"""What the perturbation memory costs: reading and writing a batch, in training steps of MSI-HG."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.optim import SGD

from benchmarks.timing import Report, Row, Value, interleaved
from sihg.core.draw import generator
from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import Batch
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG
from sihg.robust.models import build

SEED = 0
SAMPLES, SHAPE, BATCH, T, EPS = 60000, (1, 28, 28), 150, 5, 0.4  # MNIST's
STEPS = 4  # a repetition
SECONDS = 4.0  # for each kind
MOST = 0.03  # of a step, in int8
SHARES = ("share of a step", "of CPU time")
KINDS = {"int8": False, "fp16": False, "fp32": False, "int8, files": True, "fp32, files": True}


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time read + write beside whole steps, which read and write as well, on the same samples."""
    with TemporaryDirectory() as folder:
        rows = [measure(kind, Path(folder) / kind if on_disk else None, repetitions) for kind, on_disk in KINDS.items()]
    headline = rows[0]["share of a step"]
    assert isinstance(headline, tuple)
    return Report(
        f"reading and writing the memory takes at most {MOST:.0%} of an MSI-HG step (int8, in RAM)",
        headline.median <= MOST,
        {
            "measured": percent(headline),
            "model": f"small-cnn, batch {BATCH}, T = {T}, {SAMPLES} samples of {SHAPE} in the memory",
            "steps a repetition": STEPS,
            "seed": SEED,
        },
        {"memory": [{**row, **{column: percent(row[column]) for column in SHARES}} for row in rows]},
    )


def percent(share: Value) -> str:
    """A share as the table shows it: two decimals of a ratio are too few."""
    assert isinstance(share, tuple)
    return f"{100 * share.median:.2f} % ({100 * share.least:.2f}-{100 * share.largest:.2f})"


def measure(kind: str, folder: Path | None, repetitions: int) -> Row:
    """One way to keep the memory; files are in the page cache, as those of a small data set are."""
    memory = PerturbationMemory(SAMPLES, SHAPE, EPS, dtype=kind.split(",")[0], folder=folder)
    batches = [batch(number) for number in range(STEPS)]
    for one in batches:  # epoch 0, so that every row to be read has been written
        memory.write(one.index, 0, (one.x - 0.5) * EPS)
    calls = {"step": steps(memory, batches), "memory": reads_and_writes(memory, batches)}
    timed = interleaved(calls, repetitions, SECONDS)
    return {
        "kept as": kind,
        "bytes a value": memory.bytes_per_value,
        "read + write, ms": timed["memory"].milliseconds(STEPS),
        "step, ms": timed["step"].milliseconds(STEPS),
        "share of a step": timed["memory"].over(timed["step"])[0],
        "of CPU time": timed["memory"].over(timed["step"])[1],
        "repetitions": len(timed["step"].wall),
    }


def batch(number: int) -> Batch:
    """A batch of epoch 1, its samples from all over the data set."""
    draw = generator(SEED, "memory", number)
    index = torch.randperm(SAMPLES, generator=draw)[:BATCH]
    x, y = torch.rand(BATCH, *SHAPE, generator=draw), torch.randint(10, (BATCH,), generator=draw)
    return Batch(x=x, y=y, index=index, epoch=1, step=number, time=1.0, size=BATCH, seed=SEED)


def steps(memory: PerturbationMemory, batches: list[Batch]) -> Callable[[], None]:
    """Training steps with the memory."""
    model = build("small-cnn", SHAPE, 10, seed=SEED)
    optimizer = HybridGradient(SGD(model.parameters(), lr=1e-4, momentum=0.9))
    method = MSIHG(eps=EPS, steps=T, memory=memory)

    def go() -> None:
        for one in batches:
            method.step(model, one, optimizer)

    return go


def reads_and_writes(memory: PerturbationMemory, batches: list[Batch]) -> Callable[[], None]:
    """What these steps do with the memory, alone."""

    def go() -> None:
        for one in batches:
            memory.write(one.index, 1, memory.read(one.index, 1))

    return go
