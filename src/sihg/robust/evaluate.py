"""Accuracy under a list of attacks."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.robust.attacks import FGSM, PGD, Attack, Natural
from sihg.robust.attacks.attack import rows_at_once
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


def parse_attack(name: str, ball: Ball, *, last_iterate: bool = False) -> Attack:
    """The attack of that name within the ball."""
    if name == "natural":
        return Natural()
    if name == "fgsm":
        return FGSM(eps=ball.eps, norm=ball.norm, bounds=ball.bounds, last_iterate=last_iterate)
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
    """Attack all samples with each attack, where the model is; `progress(name)` gives what hears how many are done."""
    chosen = [(name, parse_attack(name, ball, last_iterate=last_iterate)) for name in attacks]
    check_model(model, samples)
    if any(not isinstance(attack, Natural) for _, attack in chosen):
        check_range(samples, ball)
    outcomes = []
    for name, attack in chosen:
        begin = time.perf_counter()
        broken, passes = _judged(model, samples, attack, seed, progress(name))
        outcomes.append(Outcome(name, broken, time.perf_counter() - begin, passes))
    return outcomes


def _judged(model: nn.Module, samples: Samples, attack: Attack, seed: int, progress: Progress) -> tuple[Tensor, int]:
    """Which samples are broken, and the passes it took; only those under attack are floats, and on the device."""
    device, broken, passes = device_of(model), torch.zeros(len(samples), dtype=torch.bool), 0
    size = rows_at_once(samples.shape)
    for numbers in torch.arange(len(samples)).split(size):
        rows = slice(int(numbers[0]), int(numbers[-1]) + 1)
        x, y = samples.floats(rows).to(device), samples.y[rows].to(device)
        verdict = attack.run(model, x, y, seed, numbers=numbers)
        broken[rows] = verdict.broken.cpu()
        passes += verdict.passes
        progress(rows.stop)
    return broken, passes


def check_range(samples: Samples, ball: Ball) -> None:
    """Refuse a radius in another unit than the data's, and data outside the bounds, which no delta brings inside."""
    ball.check_scale(samples.shape, pixels=samples.x.dtype == torch.uint8)
    for first in range(0, len(samples) if ball.bounds is not None else 0, 4096):
        ball.around(samples.floats(slice(first, first + 4096)))


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


def checked_device(name: str) -> str:
    """The device of that name, if it can be used here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used here ({why}): take cpu") from error
    return name


def device_of(model: nn.Module) -> torch.device:
    """Where the model computes."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
