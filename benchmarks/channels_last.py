"""Time a pass of our models in channels-last layout, in which they are built, and in channels-first layout."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.timing import Report, Row, time_interleaved
from sihg.core.draw import generator
from sihg.robust.gradients import input_gradient
from sihg.robust.models import build

SEED = 0
CASES = [("small-cnn", (1, 28, 28), 150), ("small-cnn", (1, 28, 28), 256), ("preact-resnet8", (3, 32, 32), 100)]
PASSES = 5
SECONDS = 4.0  # time limit per case


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time a forward pass and the gradient with respect to the image, the pass of every ascent step."""
    rows = [measure(name, shape, batch, repetitions) for name, shape, batch in CASES]
    ratios = {f"{row['model']}, batch {row['batch']}": row["last over first"] for row in rows}
    return Report(
        "a pass in channels-last layout takes at most the time of channels-first",
        all(isinstance(ratio, tuple) and ratio.median <= 1 for ratio in ratios.values()),
        {**ratios, "passes per repetition": PASSES, "seed": SEED},
        {"forward pass and gradient of the image": rows},
    )


def measure(name: str, shape: tuple[int, int, int], batch: int, repetitions: int) -> Row:
    """Check that both layouts give equal gradients, then time them."""
    last = build(name, shape, 10, seed=SEED).eval()
    first = deepcopy(last).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    draw = generator(SEED, "channels last")
    x, y = torch.rand(batch, *shape, generator=draw), torch.randint(10, (batch,), generator=draw)
    g, h = (input_gradient(deepcopy(model).double(), x.double(), y) for model in (last, first))
    difference = float((g - h).abs().max() / g.abs().max())  # float64: in float32, rounding may switch a ReLU
    assert difference < 1e-12, f"gradients of the two layouts differ by {difference:.1e}"
    timings = time_interleaved({"last": passes(last, x, y), "first": passes(first, x, y)}, repetitions, SECONDS)
    wall, cpu = timings["last"].over(timings["first"])
    return {
        "model": name,
        "sample": "x".join(map(str, shape)),
        "batch": batch,
        "last, ms": timings["last"].milliseconds(PASSES),
        "first, ms": timings["first"].milliseconds(PASSES),
        "last over first": wall,
        "ratio of CPU time": cpu,
        "repetitions": len(timings["last"].wall),
    }


def passes(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a callable that makes PASSES passes."""

    def run_passes() -> None:
        for _ in range(PASSES):
            input_gradient(model, x, y)

    return run_passes
