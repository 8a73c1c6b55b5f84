"""An attack of your own that knows the model, beside those by name: PGD on the ramp of a model's first threshold.

`threshold-cnn` and `threshold-pair` are nearly flat over most of the ball, where steps are lost. This attack takes all
of its steps on the ramp, each a share of what a pixel can do there, by turns on the cross-entropy and on the margin:

    python examples/adaptive_attack.py runs/robust-0 --attacks standard --samples 1000
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from sihg import evaluate
from sihg.robust import data
from sihg.robust.attacks.attack import margins
from sihg.robust.models.threshold import first_threshold
from sihg.robust.passes import gradient, summed
from sihg.robust.weights import of_run

RUNS, STEPS = 10, 50


def below_zero(logits: Tensor, y: Tensor) -> Tensor:
    """The margins of a batch, to be made small."""
    return -margins(logits, y).sum()


def on_the_ramp(model: nn.Module, eps: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The attack on images in [0, 1]: RUNS runs of STEPS steps that grow shorter, each run on what is left."""
    threshold = first_threshold(model)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        low, high = threshold.passed((x - eps).clamp(min=0), (x + eps).clamp(max=1))
        point, left = low + (high - low) * torch.rand_like(x), torch.arange(len(x))
        for run in range(RUNS):
            mine, least, most = y[left], low[left], high[left]
            at = least + (most - least) * torch.rand_like(least)
            for step in range(STEPS):
                uphill = gradient(model, at, mine, summed if run % 2 == 0 else below_zero).sign()
                at = torch.clamp(at + 0.2 * (1 - step / STEPS) * (most - least) * uphill, least, most)
            point[left] = at
            with torch.no_grad():
                left = left[model(at).argmax(1) == mine]
            if not len(left):
                break
        return point

    return attack


def main() -> None:
    """Evaluate a run."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("run", type=Path, help="a run of threshold-cnn or threshold-pair")
    words.add_argument("--attacks", default="pgd-50-10", help="by name, beside this one (default: pgd-50-10)")
    words.add_argument("--samples", type=int, help="test samples, each class in proportion (default: all)")
    args = words.parse_args()
    weights = of_run(args.run, "last")
    settings, model = weights.settings, weights.build()
    model.load_state_dict(weights.tensors)
    model.eval().requires_grad_(False)
    _, test = data.load(settings.data)
    attacks = {name: name for name in args.attacks.split(",")} | {"on the ramp": on_the_ramp(model, settings.eps)}
    print(evaluate(model, test, eps=settings.eps, attacks=attacks, samples=args.samples))


if __name__ == "__main__":
    main()
