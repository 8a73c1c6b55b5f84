"""A pass of the small CNN with its first convolution as a product with patches, and with torch's own."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.timing import Report, Row, interleaved
from sihg.core.draw import generator
from sihg.robust.models import build
from sihg.robust.models.small_cnn import FirstConv2d
from sihg.robust.passes import gradient

SEED = 0
CASES = [((1, 28, 28), 150), ((1, 28, 28), 256), ((1, 8, 8), 50)]  # sample, batch: MNIST trained and attacked, digits
PASSES = 10
MOST = 0.9  # of the time with torch's convolution, at the first case


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time a forward pass and the gradient in the image, the only pass of an ascent."""
    rows = [measure(shape, batch, repetitions) for shape, batch in CASES]
    headline = rows[0]["patches over torch's"]
    assert isinstance(headline, tuple)
    return Report(
        f"with FirstConv2d a pass takes at most {MOST:g} of the time with nn.Conv2d (MNIST's shape, batch 150)",
        headline.median <= MOST,
        {"measured": headline, "passes a repetition": PASSES, "repetitions": repetitions, "seed": SEED},
        {"small-cnn, forward and gradient in the image": rows},
    )


def measure(shape: tuple[int, int, int], batch: int, repetitions: int) -> Row:
    """Both ways at one shape, once their gradients are known to agree."""
    ours = build("small-cnn", shape, 10, seed=SEED).eval()
    theirs = with_torchs(ours)
    draw = generator(SEED, "first conv")
    x, y = torch.rand(batch, *shape, generator=draw), torch.randint(10, (batch,), generator=draw)
    apart = (gradient(ours, x, y) - gradient(theirs, x, y)).abs().max() / gradient(ours, x, y).abs().max()
    assert apart < 1e-4, f"the two ways are {float(apart):.1e} apart"
    timed = interleaved({"ours": passes(ours, x, y), "theirs": passes(theirs, x, y)}, repetitions)
    wall, cpu = timed["ours"].over(timed["theirs"])
    return {
        "sample": "x".join(map(str, shape)),
        "batch": batch,
        "patches, ms": timed["ours"].milliseconds(PASSES),
        "torch's, ms": timed["theirs"].milliseconds(PASSES),
        "patches over torch's": wall,
        "of CPU time": cpu,
    }


def with_torchs(model: nn.Module) -> nn.Module:
    """The same network and weights with nn.Conv2d in the first place."""
    twin = deepcopy(model)
    stem = twin.get_submodule("stem")
    first = stem.get_submodule("0")
    assert isinstance(first, FirstConv2d)
    plain = nn.Conv2d(first.in_channels, first.out_channels, 3, first.stride[0], padding=1)
    plain.load_state_dict(first.state_dict())
    stem.register_module("0", plain)
    return twin


def passes(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Some passes, as something to time."""

    def go() -> None:
        for _ in range(PASSES):
            gradient(model, x, y)

    return go
