"""Attacks on all samples, a part at a time; in a cascade each attack sees what the ones before left."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.loop import attack_batch, rows_per_chunk
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.search import Verdict, check_points
from sihg.robust.data.samples import Samples


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


@dataclass(frozen=True, eq=False)
class Part:
    """An attack on some samples has ended: its outcome so far, and what it found for these samples."""

    key: str  # of the attack: its name, in a sequence "name: stage"
    outcome: Outcome
    numbers: Tensor  # of the samples; none before the first part
    verdict: Verdict | None = None  # None before the first part


def run_attacks(model: nn.Module, samples: Samples, plans: Mapping[str, Plan], *, seed: int = 0) -> list[Outcome]:
    """Carry out each plan on all samples, on the model's device."""
    return join_outcomes(plans, {part.key: part.outcome for part in attack_parts(model, samples, plans, seed=seed)})


def attack_parts(
    model: nn.Module,
    samples: Samples,
    plans: Mapping[str, Plan],
    *,
    seed: int = 0,
    known: Mapping[str, Outcome] | None = None,
) -> Iterator[Part]:
    """Carry out each plan and yield after each part, so that the caller can show progress, keep results or stop.

    Args:
        model: The model, which is attacked on its own device.
        samples: The samples. Only those under attack are floats, and on the device.
        plans: For each name the attacks to run, each on the samples that those before did not break.
        seed: The seed of the attacks' draws.
        known: Outcomes of an interrupted run by key: attacks go on where they were.
    Yields:
        For each attack a part without samples, then its parts. The outcome is the same object each time.
    """
    for name, plan in plans.items():
        broken = torch.zeros(len(samples), dtype=torch.bool)
        for stage, attack in plan.items():
            key = name if len(plan) == 1 else f"{name}: {stage}"
            outcome = (known or {}).get(key) or Outcome.begin(stage, broken)
            outcome.proof = attack.proves
            yield Part(key, outcome, torch.arange(0))
            yield from _attack(model, samples, attack, outcome, seed, key)
            broken = outcome.broken


def join_outcomes(plans: Mapping[str, Plan], outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """Return one outcome for each plan, made of those of its stages."""
    joined = []
    for name, plan in plans.items():
        stages = [outcomes[name if len(plan) == 1 else f"{name}: {stage}"] for stage in plan]
        joined.append(stages[0] if len(stages) == 1 else _joined(name, stages))
    return joined


def _attack(
    model: nn.Module, samples: Samples, attack: Attack, outcome: Outcome, seed: int, key: str
) -> Iterator[Part]:
    device = device_of(model)
    left = outcome.attacked.nonzero().flatten()[outcome.done :]
    for numbers in left.split(rows_per_chunk(samples.shape)) if len(left) else ():
        begin = time.perf_counter()
        x, y = samples.floats(numbers).to(device), samples.y[numbers].to(device)
        try:
            verdict = attack_batch(attack, model, x, y, seed, numbers=numbers)
        except RuntimeError as error:
            if not is_missing_gradient(error):
                raise
            raise InputError("no-input-gradient", attack=key) from error
        check_points(key, attack.ball, x, verdict.x_adv, numbers)
        outcome.add(numbers, verdict, time.perf_counter() - begin)
        outcome.remark = attack.remark(verdict.classes)
        yield Part(key, outcome, numbers, verdict)


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
