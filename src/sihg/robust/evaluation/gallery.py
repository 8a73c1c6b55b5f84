"""A sample of each class before and after the strongest attack of an evaluation, for its report to show."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import Outcome, device_of
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import evaluation_mode
from sihg.store.files import write_arrays

MOST = 20  # classes shown
LOOKED_AT = 16  # broken samples of a class among which one is sought that is right as it is


def strongest(outcomes: list[Outcome]) -> Outcome | None:
    """The attack that left least, the first of equals; None where there was none."""
    attacks = [one for one in outcomes if one.attack != "natural" and not one.proof]
    return min(attacks, key=lambda one: one.accuracy, default=None)


def gallery(
    model: nn.Module, samples: Samples, plan: Plan, outcome: Outcome, *, seed: int
) -> dict[str, np.ndarray[Any, Any]]:
    """A sample of each of the first classes, attacked once more by the part of the plan that found its point.

    Draws depend on a sample's number and the seed, not on its company, so this is the point of the evaluation, up to
    rounding, also where a part of the evaluation was carried out before an interruption.
    """
    found_by = _stages(outcome)
    numbers, before = _chosen(model, samples, outcome, found_by)
    x, y = samples.floats(numbers), samples.y[numbers]
    x_adv, after = x.clone(), before.clone()
    device = device_of(model)
    for i, attack in enumerate(plan.values()):
        mine = (found_by[numbers] == i).nonzero().flatten()
        if len(mine):
            verdict = attack.run(model, x[mine].to(device), y[mine].to(device), seed, numbers=numbers[mine])
            x_adv[mine], after[mine] = verdict.x_adv.detach().cpu(), verdict.prediction.cpu()
    tensors = {"number": numbers, "label": y, "before": before, "after": after}
    tensors |= {"clean": x.float(), "adversarial": x_adv.float()}
    return {name: value.numpy() for name, value in tensors.items()}


def _stages(outcome: Outcome) -> Tensor:
    """For each sample, which stage found its point: that which broke it, else of those with gradients the nearest."""
    stages = outcome.stages or (outcome,)
    margins = torch.stack([one.margin if one.passes else torch.full_like(one.margin, math.inf) for one in stages])
    found_by = margins.nan_to_num(math.inf).argmin(0)
    for i, one in enumerate(stages):
        found_by[one.attacked & one.broken] = i
    return found_by


def _chosen(model: nn.Module, samples: Samples, outcome: Outcome, found_by: Tensor) -> tuple[Tensor, Tensor]:
    """A sample of each class and its prediction as it is: broken by an early stage and right before, if there is one.

    Else a broken one, else that of the smallest margin.
    """
    is_natural = torch.tensor([one.attack == "natural" for one in outcome.stages or (outcome,)])
    late = found_by + len(is_natural) * is_natural[found_by]  # what is wrong as it is shows nothing
    numbers, before = [], []
    for label in samples.y.unique().tolist()[:MOST]:
        mine = (samples.y == label).nonzero().flatten()
        broken = mine[outcome.broken[mine]]
        broken = broken[late[broken].argsort(stable=True)][:LOOKED_AT]
        nearest = mine[outcome.margin[mine].nan_to_num(math.inf).argmin()]
        some = broken if len(broken) else nearest[None]
        seen = _predictions(model, samples, some)
        place = int((seen == label).int().argmax())  # the first that is right, or the first
        numbers.append(some[place])
        before.append(seen[place])
    return torch.stack(numbers), torch.stack(before)


def write_gallery(path: Path, about: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> Path:
    """Keep it in one small file."""
    return write_arrays(path, {"about": np.array(json.dumps(about)), **arrays})


def is_better(path: Path, about: dict[str, Any]) -> bool:
    """Whether the gallery in a file is of the same weights and ball, and of a stronger attack."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            there = json.loads(str(file["about"]))
        same = all(there[key] == about[key] for key in about if key not in ("attack", "accuracy"))
        return bool(same and there["accuracy"] < about["accuracy"])
    except Exception:  # none, or a damaged one
        return False


def has_pictures(samples: Samples) -> bool:
    """Whether the samples are images, grey or in colour."""
    return len(samples.shape) == 3 and samples.shape[0] in (1, 3)


def _predictions(model: nn.Module, samples: Samples, numbers: Tensor) -> Tensor:
    with evaluation_mode(model), torch.no_grad():
        logits: Tensor = model(samples.floats(numbers).to(device_of(model)))
    return logits.argmax(1).cpu()
