"""Accuracy under a list of attacks."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.robust.attacks import FGSM, PGD
from sihg.robust.attacks.pgd import CHUNK, misclassified
from sihg.robust.ball import Ball
from sihg.robust.data.samples import Samples
from sihg.robust.passes import evaluating

Progress = Callable[[int], object]
FORMS = ["natural", "fgsm", "pgd-T", "pgd-T-R (such as pgd-20 and pgd-50-10)"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a model did under one attack."""

    attack: str
    broken: Tensor  # for each sample, whether it is misclassified
    seconds: float
    passes: int

    @property
    def accuracy(self) -> float:
        """The share of samples that held."""
        return int((~self.broken).sum()) / len(self.broken)


def parse_attack(name: str, ball: Ball, *, last_iterate: bool = False) -> PGD | None:
    """The attack of that name within the ball; None for no attack."""
    if name == "natural":
        return None
    if name == "fgsm":
        return FGSM(eps=ball.eps, norm=ball.norm, bounds=ball.bounds)
    form = re.fullmatch(r"pgd-(\d+)(?:-(\d+))?", name)
    if not form:
        raise UnknownNameError("attack", name, FORMS)
    steps, restarts = int(form[1]), int(form[2] or 1)
    return PGD(
        eps=ball.eps, steps=steps, restarts=restarts, norm=ball.norm, bounds=ball.bounds, last_iterate=last_iterate
    )


def evaluate(
    model: nn.Module,
    samples: Samples,
    attacks: list[str],
    ball: Ball,
    *,
    seed: int = 0,
    last_iterate: bool = False,
    progress: Callable[[str], Progress] = lambda _name: lambda _done: None,
) -> list[Outcome]:
    """Attack all samples with each attack; `progress(name)` gives a function that hears how many samples are done."""
    chosen = [(name, parse_attack(name, ball, last_iterate=last_iterate)) for name in attacks]
    check_model(model, samples)
    x, y = samples.floats(), samples.y
    device = device_of(model)
    outcomes = []
    for name, attack in chosen:
        begin, hears = time.perf_counter(), progress(name)
        if attack is None:
            broken, passes = natural_errors(model, x, y, device, hears), 0
        else:
            verdict = attack.run(model, x.to(device), y.to(device), seed, hears)
            broken, passes = verdict.broken.cpu(), verdict.passes
        outcomes.append(Outcome(name, broken, time.perf_counter() - begin, passes))
    return outcomes


def natural_errors(model: nn.Module, x: Tensor, y: Tensor, device: torch.device, progress: Progress) -> Tensor:
    """Which samples are misclassified as they are."""
    wrong = []
    with evaluating(model), torch.no_grad():
        for some_x, some_y in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            wrong.append(misclassified(model(some_x.to(device)), some_y.to(device)).cpu())
            progress(min(len(wrong) * CHUNK, len(x)))
    return torch.cat(wrong)


def check_model(model: nn.Module, samples: Samples) -> None:
    """Refuse a model that does not take these samples or has fewer outputs than classes."""
    x = samples.floats(slice(0, 1)).to(device_of(model))
    try:
        with evaluating(model), torch.no_grad():
            out = model(x)
    except InputError:
        raise
    except Exception as error:
        why = (str(error) or repr(error)).splitlines()[0]
        raise InputError(
            f"the model does not take samples of shape {samples.shape} and type {x.dtype} ({why}): give it data of its "
            "size and type"
        ) from error
    shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 1 or out.shape[1] < len(samples.classes):
        raise InputError(
            f"the model gives an output of shape {shape} for one sample of {samples.name}, which has "
            f"{len(samples.classes)} classes: it must be (n, classes)"
        )


def device_of(model: nn.Module) -> torch.device:
    """Where the model computes."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
