"""Compare what FGSM-PGI stores in int8 with what it stores in float32: `python -m benchmarks.momentum_rounding`.

The weights do not change, so that all differences come from the memory. Entries of delta count as different if they
differ by at least one step of int8. A momentum near zero may change its sign when it is rounded; then delta moves the
other way.
"""

from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.mnist_models import load_images
from sihg.robust.data.batches import batches
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import FGSMPGI
from sihg.robust.methods.fgsm_pgi import MAX_MOMENTUM
from sihg.robust.models import build

IMAGES, BATCH, SEED, EPOCHS = 300, 50, 0, (2, 4, 8, 16)
RADII = (0.1, 0.4)
INT8_STEPS, MOMENTUM, NO_CUT = 127, 0.3, 1024.0


def main() -> None:
    """Print the percentage of entries that differ, by radius, by what changes, and by the number of epochs."""
    torch.set_num_threads(1)
    data = load_images(IMAGES)
    print(f"{'eps':>5}  {'compared':36}" + "".join(f"{f'{n} epochs':>11}" for n in EPOCHS))
    for eps in RADII:
        for title, (one, other) in pairs().items():
            shares = [share_that_differs(data, eps, epochs, one, other) for epochs in EPOCHS]
            print(f"{eps:5}  {title:36}" + "".join(f"{100 * share:11.3f}" for share in shares), flush=True)


Case = tuple[str, float, float]  # the number format, momentum_decay, and where the momentum is cut


def pairs() -> dict[str, tuple[Case, Case]]:
    """Return the cases to compare."""
    cut = MAX_MOMENTUM["linf"]
    return {
        "int8 and fp32": (("int8", MOMENTUM, cut), ("fp32", MOMENTUM, cut)),
        "int8 and fp32, without momentum": (("int8", 0.0, cut), ("fp32", 0.0, cut)),
        "fp32 with and without the cut at 8": (("fp32", MOMENTUM, cut), ("fp32", MOMENTUM, NO_CUT)),
        "int8 without the cut, and fp32": (("int8", MOMENTUM, NO_CUT), ("fp32", MOMENTUM, NO_CUT)),
    }


def share_that_differs(data: tuple[Tensor, Tensor], eps: float, epochs: int, one: Case, other: Case) -> float:
    """Return the share of entries that differ by at least one step of int8 after some epochs."""
    a, b = (stored(data, eps, epochs, *case) for case in (one, other))
    return float(((a - b).abs() >= eps / INT8_STEPS).double().mean())


def stored(data: tuple[Tensor, Tensor], eps: float, epochs: int, dtype: str, decay: float, cut: float) -> Tensor:
    """Return the perturbations that a memory holds after some epochs with fixed weights."""
    shape = tuple(data[0].shape[1:])
    method = FGSMPGI(eps=eps, momentum_decay=decay)
    method.memory = memory = PerturbationMemory(IMAGES, method.row_shape(shape), eps, dtype=dtype)
    model = build("small-cnn", shape, 10, seed=SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with patch.dict(MAX_MOMENTUM, linf=cut):
        for batch in batches(data, size=BATCH, seed=SEED, epochs=epochs):
            method.step(model, batch, optimizer)
    rows = memory.read(torch.arange(IMAGES), epochs)
    return rows.chunk(2, 1)[0] if decay else rows


if __name__ == "__main__":
    main()
