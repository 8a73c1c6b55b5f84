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

from sihg import evaluate, load
from sihg.errors import SihgError
from sihg.robust import data
from sihg.robust.attacks.losses import margins
from sihg.robust.evaluation import Evaluation
from sihg.robust.gradients import cross_entropy_sum, input_gradient
from sihg.robust.models.threshold import threshold_of
from sihg.robust.training.weights import read_run_weights

RUNS, STEPS = 10, 50


def lost_margin(logits: Tensor, y: Tensor) -> Tensor:
    """How far the labels of a batch are behind, added up."""
    return -margins(logits, y).sum()


def on_the_ramp(model: nn.Module, eps: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The attack on images in [0, 1]: RUNS runs of STEPS steps that grow shorter, each on what the ends before left."""
    threshold = threshold_of(model)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        low, high = threshold.passed((x - eps).clamp(min=0), (x + eps).clamp(max=1))
        point, left = x.clone(), torch.arange(len(x), device=x.device)
        for run in range(RUNS):
            mine, least, most = y[left], low[left], high[left]
            at = least + (most - least) * torch.rand_like(least)
            for step in range(STEPS):
                uphill = input_gradient(model, at, mine, cross_entropy_sum if run % 2 == 0 else lost_margin).sign()
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
    words.add_argument("--threads", type=int, help="of torch (default: its own choice)")
    args = words.parse_args()
    try:
        print(evaluated(words, args))
    except SihgError as error:
        words.error(str(error))


def evaluated(words: argparse.ArgumentParser, args: argparse.Namespace) -> Evaluation:
    """The run's model under the attacks by name and this one."""
    if args.threads:
        torch.set_num_threads(args.threads)
    weights = read_run_weights(args.run, "last")
    settings = weights.settings
    if settings.norm != "linf" or settings.bounds != (0.0, 1.0):
        words.error(
            f"{args.run} is of {settings.norm} with bounds {settings.bounds}: this attack is for linf in [0, 1]"
        )
    model = load(args.run).requires_grad_(False)
    _, test = data.load(settings.data, weights.data_dir)
    attacks = {name.strip(): name.strip() for name in args.attacks.split(",")}
    attacks |= {"on the ramp": on_the_ramp(model, settings.eps)}
    return evaluate(model, test, eps=settings.eps, attacks=attacks, samples=args.samples)


if __name__ == "__main__":
    main()
