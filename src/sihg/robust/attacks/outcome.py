"""The result of an attack per sample, and that of a cascade made of its stages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.verdict import Verdict


@dataclass(eq=False)
class Outcome:
    """The result of an attack per sample; in a cascade, under it and those before."""

    attack: str
    attacked: Tensor  # which samples were attacked
    broken: Tensor  # which samples do not hold; of a random model, where at least half of the votes are wrong
    prediction: Tensor  # at the point found, -1 where not attacked
    margin: Tensor  # at the point found, nan where not attacked
    distance: Tensor  # of the point found from x; inf where it is not broken, nan where not attacked
    passes: int = 0  # forward and backward
    forwards: int = 0  # forward alone
    seconds: float = 0.0
    done: int = 0  # of the samples to attack
    remark: str = ""
    proof: bool = False  # True: the others are proven to hold, and the broken ones may hold
    stages: tuple["Outcome", ...] = ()
    votes: int = 1  # that classified the point found for each sample
    wrong: Tensor | None = None  # with several votes: how many are wrong, of the worst point in a cascade

    @classmethod
    def begin(
        cls, attack: str, broken: Tensor, proven: Tensor | None = None, votes: int = 1, wrong: Tensor | None = None
    ) -> "Outcome":
        """Return the outcome before an attack on the samples that are neither broken yet nor proven to hold."""
        unknown = torch.full(broken.shape, math.nan)
        if votes > 1:
            wrong = torch.zeros(broken.shape, dtype=torch.long) if wrong is None else wrong.clone()
        known = (broken.clone(), torch.full(broken.shape, -1), unknown, unknown.clone())
        left = ~broken if proven is None else ~(broken | proven)
        return cls(attack, left, *known, votes=votes, wrong=wrong)

    def __repr__(self) -> str:
        return f"Outcome({self.attack!r}, accuracy {self.accuracy:.4f} on {len(self.broken)} samples)"

    @property
    def accuracy(self) -> float:
        """The share of samples that are not broken."""
        return int((~self.broken).sum()) / len(self.broken)

    @property
    def mean_accuracy(self) -> float | None:
        """Of a random model: how likely one draw is right, in the mean over samples."""
        return None if self.wrong is None else 1 - int(self.wrong.sum()) / (self.votes * len(self.wrong))

    @property
    def worst_accuracy(self) -> float | None:
        """Of a random model: the share of samples for which every draw is right."""
        return None if self.wrong is None else int((self.wrong == 0).sum()) / len(self.wrong)

    def add(self, numbers: Tensor, verdict: Verdict, seconds: float) -> None:
        """Add what an attack found for the samples of these numbers."""
        self.broken[numbers] = verdict.broken.cpu()
        self.prediction[numbers] = verdict.prediction.cpu()
        self.margin[numbers] = verdict.margin.float().cpu()
        self.distance[numbers] = verdict.distance.where(verdict.broken, math.inf).float().cpu()
        if self.wrong is not None:
            self.wrong[numbers] = torch.maximum(self.wrong[numbers], verdict.wrong.cpu())
        self.passes += verdict.passes
        self.forwards += verdict.forwards
        self.seconds += seconds
        self.done += len(numbers)


def join_outcomes(plans: Mapping[str, Plan], outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """Return one outcome for each plan, made of those of its stages."""
    joined = []
    for name, plan in plans.items():
        stages = [outcomes[name if len(plan) == 1 else f"{name}: {stage}"] for stage in plan]
        joined.append(stages[0] if len(stages) == 1 else _join_stages(name, stages))
    return joined


def _join_stages(name: str, stages: list[Outcome]) -> Outcome:
    """Return a cascade as one attack: each sample at the point that broke it, or at that of smallest margin."""
    prediction, margin, distance = (t.clone() for t in (stages[0].prediction, stages[0].margin, stages[0].distance))
    for stage in (stage for stage in stages[1:] if not stage.proof):
        better = stage.attacked & (stage.broken | ~(stage.margin >= margin))
        prediction[better], margin[better] = stage.prediction[better], stage.margin[better]
        distance[better] = stage.distance[better]
    return Outcome(
        name,
        stages[0].attacked,
        stages[-1].broken,
        prediction,
        margin,
        distance,
        sum(stage.passes for stage in stages),
        sum(stage.forwards for stage in stages),
        sum(stage.seconds for stage in stages),
        len(prediction),
        "; ".join(f"{stage.attack}: {stage.remark}" for stage in stages if stage.remark),
        stages[-1].proof,
        tuple(stages),
        stages[-1].votes,
        stages[-1].wrong,
    )
