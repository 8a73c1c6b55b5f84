"""Measure what the paper leaves open for MSI-HG, where that is cheap: on digits, without the pixel box.

    python -m benchmarks.paper_choices --trials 5 --out runs/paper-choices

Each row changes one choice. Finished trials are in OUT/trials.jsonl; the same command continues.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

from torch import Tensor, nn

from benchmarks.timing import Row, format_table
from sihg.robust.data import load
from sihg.robust.data.batches import Batch
from sihg.robust.evaluation import evaluate
from sihg.robust.methods import MSIHG
from sihg.robust.models import build
from sihg.robust.threat import Feasible
from sihg.robust.training.fit import fit

EPS = 0.25
RUN: dict[str, Any] = {"epochs": 20, "batch_size": 50, "lr": 0.05, "momentum": 0.9}
METHOD: dict[str, Any] = {"eps": EPS, "bounds": None, "tau": 0.125, "steps": 5}


@dataclass(kw_only=True)
class FreeStart(MSIHG):
    """MSI-HG whose first gradient is taken at delta + noise as it is, which may lie outside the ball."""

    def start(self, batch: Batch, feasible: Feasible, radius: float | Tensor, centre: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return delta + U[-radius, radius], not projected."""
        noise = batch.uniform("start").mul_(2).sub_(1).mul_(radius)
        return noise if centre is None else noise.add_(centre)


VARIANTS: dict[str, tuple[type[MSIHG], dict[str, Any], dict[str, Any]]] = {  # class, options of the method, of the run
    "our choices": (MSIHG, {}, {}),
    "noisy start not projected": (FreeStart, {}, {}),
    "no noise at the start": (MSIHG, {"noise": 0.0}, {}),
    "pixel box": (MSIHG, {"bounds": (0.0, 1.0)}, {}),
    "memory in float32": (MSIHG, {}, {"memory": "fp32"}),
    "weight decay 5e-4": (MSIHG, {}, {"weight_decay": 5e-4}),
    "torch's initialisation": (MSIHG, {}, {}),
}


def model_for(variant: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return the small CNN with the weights that this variant starts from."""
    import torch

    model = build("small-cnn", shape, classes, seed=seed)
    if variant == "torch's initialisation":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in model.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    layer.reset_parameters()
    return model


def run(variant: str, seed: int) -> dict[str, Any]:
    """Train and attack one variant with one seed; both attacks in the paper's ball, without the box."""
    kind, options, settings = VARIANTS[variant]
    train, test = load("digits")
    model = model_for(variant, train.shape, len(train.classes), seed)
    fit(model, train, method=kind(**{**METHOD, **options}), seed=seed, **{**RUN, **settings})
    found = evaluate(model, test, eps=EPS, bounds=None, attacks="natural,pgd-20")
    rows = {row.attack: 100 * row.accuracy for row in found.rows()}
    return {"variant": variant, "seed": seed, "natural": rows["natural"], "pgd-20": rows["pgd-20"]}


def table(records: list[dict[str, Any]]) -> str:
    """Return mean and deviation of each variant."""
    rows: list[Row] = []
    for variant in VARIANTS:
        own = [record for record in records if record["variant"] == variant]
        if len(own) > 1:
            cells = {
                name: f"{fmean(values):.2f} +- {stdev(values):.2f}"
                for name in ("natural", "pgd-20")
                for values in [[record[name] for record in own]]
            }
            rows.append({"choice": variant, "n": str(len(own)), **cells})
    return format_table(rows) if rows else "no choice has two trials yet"


def main() -> int:
    """Run what is not finished, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_choices", description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=5, metavar="N", help="seeds, from 0 (default: 5)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the records")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "trials.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    done = {(record["variant"], record["seed"]) for record in records}
    for seed in range(args.trials):
        for variant in VARIANTS:
            if (variant, seed) not in done:
                records.append(run(variant, seed))
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(records[-1]) + "\n")
                print(records[-1], flush=True)
    print(table(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
