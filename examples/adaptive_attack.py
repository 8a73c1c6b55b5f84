"""Evaluate a run under an attack that knows the model: PGD on the ramp of the model's threshold.

`threshold-cnn` and `threshold-pair` are nearly flat over most of the ball, where gradient steps achieve nothing. This
attack stays on the ramp. Each step is a share of the pixel's range there; odd and even restarts use different losses.

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
from sihg.robust.evaluation import Evaluation
from sihg.robust.gradients import cross_entropy_sum, input_gradient, margins
from sihg.robust.models.threshold import threshold_of
from sihg.robust.training.weights import read_run_weights

RESTARTS, STEPS = 10, 50


def negative_margin_sum(logits: Tensor, y: Tensor) -> Tensor:
    """Return a loss that is large where other classes have larger logits than the label."""
    return -margins(logits, y).sum()


def make_ramp_attack(model: nn.Module, eps: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the attack for images in [0, 1]: RESTARTS restarts of STEPS shrinking steps on the unbroken samples."""
    threshold = threshold_of(model)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        low, high = threshold.passed((x - eps).clamp(min=0), (x + eps).clamp(max=1))
        points, unbroken = x.clone(), torch.arange(len(x), device=x.device)
        for restart in range(RESTARTS):
            labels, lower, upper = y[unbroken], low[unbroken], high[unbroken]
            point = lower + (upper - lower) * torch.rand_like(lower)
            loss = cross_entropy_sum if restart % 2 == 0 else negative_margin_sum
            for step in range(STEPS):
                direction = input_gradient(model, point, labels, loss).sign()
                point = torch.clamp(point + 0.2 * (1 - step / STEPS) * (upper - lower) * direction, lower, upper)
            points[unbroken] = point
            with torch.no_grad():
                unbroken = unbroken[model(point).argmax(1) == labels]
            if not len(unbroken):
                break
        return points

    return attack


def main() -> None:
    """Read the command line and print the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run of threshold-cnn or threshold-pair")
    parser.add_argument("--attacks", default="pgd-50-10", help="other attacks, by name (default: pgd-50-10)")
    parser.add_argument("--samples", type=int, help="size of a stratified subset of the test set (default: all)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's choice)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        print(evaluate_run(parser, args))
    except SihgError as error:
        parser.error(str(error))


def evaluate_run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Evaluation:
    """Evaluate the run's model under the named attacks and this one."""
    weights = read_run_weights(args.run, "last")
    settings = weights.settings
    if settings.norm != "linf" or settings.bounds != (0.0, 1.0):
        parser.error(
            f"this attack needs a run with norm linf and bounds [0, 1], got {settings.norm} and {settings.bounds} "
            f"in {args.run}: use another run"
        )
    model = load(args.run).requires_grad_(False)
    _, test = data.load(settings.data, weights.data_dir)
    attacks = {name.strip(): name.strip() for name in args.attacks.split(",")}
    attacks |= {"on the ramp": make_ramp_attack(model, settings.eps)}
    return evaluate(model, test, eps=settings.eps, attacks=attacks, samples=args.samples)


if __name__ == "__main__":
    main()
