"""Attacks on all samples, a part at a time; in a cascade each attack sees what the ones before left."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack, Verdict, check_points, rows_at_once
from sihg.robust.attacks.registry import Plan
from sihg.robust.data.samples import Samples

Progress = Callable[[int], object]


@dataclass(eq=False)
class Outcome:
    """How the samples fared under an attack; in a cascade, under it and those before."""

    attack: str
    attacked: Tensor  # which samples were
    broken: Tensor  # which do not hold
    prediction: Tensor  # at the point found, -1 where not attacked
    margin: Tensor  # at the point found, nan where not attacked
    passes: int = 0  # forward and backward
    forwards: int = 0  # forward alone
    seconds: float = 0.0
    done: int = 0  # of those to be attacked
    remark: str = ""
    proof: bool = False  # whether the others are proven to hold, and the broken ones may
    stages: tuple["Outcome", ...] = field(default=())

    @classmethod
    def begin(cls, attack: str, broken: Tensor) -> "Outcome":
        """Before an attack on those that are not broken yet."""
        nothing = torch.full(broken.shape, math.nan)
        return cls(attack, ~broken, broken.clone(), torch.full(broken.shape, -1), nothing)

    @property
    def accuracy(self) -> float:
        """The share of samples that hold."""
        return int((~self.broken).sum()) / len(self.broken)

    def add(self, numbers: Tensor, verdict: Verdict, seconds: float) -> None:
        """What became of some samples."""
        self.broken[numbers] = verdict.broken.cpu()
        self.prediction[numbers] = verdict.prediction.cpu()
        self.margin[numbers] = verdict.margin.float().cpu()
        self.passes += verdict.passes
        self.forwards += verdict.forwards
        self.seconds += seconds
        self.done += len(numbers)


class Ledger(Protocol):
    """Remembers outcomes, finished or not."""

    def known(self, key: str) -> Outcome | None:
        """The outcome of that key, if some of it is known."""
        ...

    def keep(self, key: str, outcome: Outcome, numbers: Tensor, verdict: Verdict) -> None:
        """Remember the outcome, to which the verdict on these samples was just added."""
        ...


def run_attacks(
    model: nn.Module,
    samples: Samples,
    plans: Mapping[str, Plan],
    *,
    seed: int = 0,
    progress: Callable[[str, int], Progress] = lambda _name, _total: lambda _done: None,
    ledger: Ledger | None = None,
) -> list[Outcome]:
    """Carry out each plan on all samples, where the model is; `progress(attack, total)` gives what hears of samples."""
    outcomes = []
    for name, plan in plans.items():
        stages: list[Outcome] = []
        for part, attack in plan.items():
            broken = stages[-1].broken if stages else torch.zeros(len(samples), dtype=torch.bool)
            key = name if len(plan) == 1 else f"{name}: {part}"
            outcome = (ledger.known(key) if ledger else None) or Outcome.begin(part, broken)
            outcome.proof = attack.proves
            _attack(model, samples, attack, outcome, seed, progress(key, int(outcome.attacked.sum())), ledger, key)
            stages.append(outcome)
        outcomes.append(stages[0] if len(stages) == 1 else _joined(name, stages))
    return outcomes


def _attack(
    model: nn.Module,
    samples: Samples,
    attack: Attack,
    outcome: Outcome,
    seed: int,
    progress: Progress,
    ledger: Ledger | None,
    key: str,
) -> None:
    """Attack what is not done yet; only samples under attack are floats, and on the device."""
    device = device_of(model)
    left = outcome.attacked.nonzero().flatten()[outcome.done :]
    for numbers in left.split(rows_at_once(samples.shape)) if len(left) else ():
        begin = time.perf_counter()
        x, y = samples.floats(numbers).to(device), samples.y[numbers].to(device)
        try:
            verdict = attack.run(model, x, y, seed, numbers=numbers)
        except RuntimeError as error:
            if not is_missing_gradient(error):
                raise
            raise InputError(
                f"{key} needs the gradient in the input, and the model gives none: take no_grad and detach out of its "
                "forward, or attack it with square"
            ) from error
        check_points(key, attack.ball, x, verdict.x_adv, numbers)
        outcome.add(numbers, verdict, time.perf_counter() - begin)
        outcome.remark = attack.remark(verdict.classes)
        if ledger:
            ledger.keep(key, outcome, numbers, verdict)
        progress(outcome.done)


def _joined(name: str, stages: list[Outcome]) -> Outcome:
    """A cascade as one attack: each sample at the point that broke it, or at that of smallest margin."""
    last = stages[-1]
    prediction, margin = stages[0].prediction.clone(), stages[0].margin.clone()
    for one in stages[1:]:
        better = one.attacked & (one.broken | ~(one.margin >= margin))
        prediction[better], margin[better] = one.prediction[better], one.margin[better]
    return Outcome(
        name,
        stages[0].attacked,
        last.broken,
        prediction,
        margin,
        sum(one.passes for one in stages),
        sum(one.forwards for one in stages),
        sum(one.seconds for one in stages),
        len(last.broken),
        "; ".join(f"{one.attack}: {one.remark}" for one in stages if one.remark),
        last.proof,
        tuple(stages),
    )


def is_missing_gradient(error: RuntimeError) -> bool:
    """Whether torch says that a model's output does not depend on its input in a way that can be differentiated."""
    ways = (
        "does not require grad",
        "not have been used in the graph",
        "Can't call numpy() on Tensor that requires grad",
    )
    return any(what in str(error) for what in ways)


def device_of(model: nn.Module) -> torch.device:
    """Where the model computes."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
