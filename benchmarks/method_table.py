"""Every training method on one recipe: accuracy under the standard attacks, passes, seconds.

    python -m benchmarks.method_table --out runs/method-table              # on MNIST; continues where it ended
    python -m benchmarks.method_table --data svhn --out runs/method-table-svhn
    sihg compare runs/method-table/*                                       # the table

The recipe is one for all: nothing is tuned for a method. `benchmarks.method_costs` has the bytes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.grid_cells import run_cells
from sihg.experiments.grid_run import build_grid

ATTACKS = ("natural", "pgd-20", "standard")
RAMP = 3 / 8  # share of the epochs
FREE_REPLAYS = 8  # of a batch, so that Free takes an eighth of the epochs
RECIPES: dict[str, dict[str, Any]] = {
    "mnist": {
        "preset": "mnist-fast",
        "epochs": 8,
        "samples": 6000,  # 1,000 of them are held out
        "batch_size": 50,
        "lr": 0.04,
        "ema": 0.99,
    },
    "svhn": {
        "preset": "svhn",
        "epochs": 8,
        "samples": 21_000,
        "batch_size": 100,
        "lr": 0.1,
        "schedule.name": "triangular",
        "precision": "bfloat16",
    },
}
SHARED = {"validation": 1000, "nesterov": False}
MSI_HG = {"steps": 5, "fresh": 0.0, "reset": 0}  # goes to the methods that have them, as the next
ASCENT = {"steps": 5, "reset": 0, "inner": 5, "outer": 5}
COMPARED = ("pgd", "atta", "msi-hg")  # in all seeds: what the memory and the hybrid step add
OTHERS = ("fgsm-pgi", "natural", "fgsm", "fast", "n-fgsm", "dat", "ibp", "mart", "trades", "yopo")


def train(
    data: str, out: Path, methods: Sequence[str], samples: int, trials: int, more: dict[str, Any], *, replays: int = 1
) -> None:
    """Train and attack what is not finished."""
    recipe = {**SHARED, **RECIPES[data], **more}
    epochs = recipe["epochs"] // replays
    recipe |= {"epochs": epochs, "ramp": RAMP * epochs, "evaluate_every": epochs}
    preset = recipe.pop("preset")
    grid = build_grid(
        data,
        preset=preset,
        methods=methods,
        trials=trials,
        attacks=ATTACKS,
        samples=samples,
        out=out,
        settings=recipe,
    )
    run_cells(grid)


def main() -> int:
    """Run what is not finished."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method_table", description=__doc__.split("\n")[0])
    parser.add_argument("--data", choices=sorted(RECIPES), default="mnist", help="the data set (default: mnist)")
    parser.add_argument("--samples", type=int, default=200, metavar="N", help="test images (default: 200)")
    parser.add_argument(
        "--trials", type=int, default=3, metavar="N", help="seeds of the compared methods, from 0 (default: 3)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the runs")
    args = parser.parse_args()
    others = [name for name in OTHERS if (args.data, name) != ("svhn", "ibp")]  # no interval bounds of its layers
    for trials in range(1, args.trials + 1):
        train(args.data, args.out / "theta-0", ["msi-hg"], args.samples, trials, {**MSI_HG, "theta": 0.0})
        train(args.data, args.out / "all", COMPARED, args.samples, trials, MSI_HG)
        if trials == 1:  # one seed is enough to place the others
            train(args.data, args.out / "all", others, args.samples, trials, ASCENT)
            train(args.data, args.out / "free", ["free"], args.samples, trials, {}, replays=FREE_REPLAYS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
