"""A pass of our models with channels last in memory, as they are built, and with channels first."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.timing import Report, Row, interleaved
from sihg.core.draw import generator
from sihg.robust.gradients import input_gradient
from sihg.robust.models import build

SEED = 0
CASES = [("small-cnn", (1, 28, 28), 150), ("small-cnn", (1, 28, 28), 256), ("preact-resnet8", (3, 32, 32), 100)]
PASSES = 5
SECONDS = 4.0  # for each case


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time a forward pass and the gradient in the image, the only pass of an ascent."""
    rows = [measure(name, shape, batch, repetitions) for name, shape, batch in CASES]
    ratios = {f"{row['model']}, batch {row['batch']}": row["last over first"] for row in rows}
    return Report(
        "channels last in memory make no pass slower than channels first",
        all(isinstance(ratio, tuple) and ratio.median <= 1 for ratio in ratios.values()),
        {**ratios, "passes a repetition": PASSES, "seed": SEED},
        {"forward and gradient in the image": rows},
    )


def measure(name: str, shape: tuple[int, int, int], batch: int, repetitions: int) -> Row:
    """Both ways at one shape, once their gradients are known to agree."""
    last = build(name, shape, 10, seed=SEED).eval()
    first = deepcopy(last).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    draw = generator(SEED, "channels last")
    x, y = torch.rand(batch, *shape, generator=draw), torch.randint(10, (batch,), generator=draw)
    g, h = (input_gradient(deepcopy(model).double(), x.double(), y) for model in (last, first))
    apart = float((g - h).abs().max() / g.abs().max())  # in float32 a ReLU at its kink may turn by rounding
    assert apart < 1e-12, f"the two ways are {apart:.1e} apart"
    timed = interleaved({"last": passes(last, x, y), "first": passes(first, x, y)}, repetitions, SECONDS)
    wall, cpu = timed["last"].over(timed["first"])
    return {
        "model": name,
        "sample": "x".join(map(str, shape)),
        "batch": batch,
        "last, ms": timed["last"].milliseconds(PASSES),
        "first, ms": timed["first"].milliseconds(PASSES),
        "last over first": wall,
        "of CPU time": cpu,
        "repetitions": len(timed["last"].wall),
    }


def passes(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Some passes, as something to time."""

    def go() -> None:
        for _ in range(PASSES):
            input_gradient(model, x, y)

    return go
