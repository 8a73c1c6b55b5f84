"""Keep one sample per class before and after the strongest attack of an evaluation, for its report to show."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sihg.core.draw import seeded
from sihg.errors import InputError
from sihg.robust.attacks.input_checks import load_rows
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.random_models import ONCE, Draws
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.replaced_gradients import replace_gradients
from sihg.robust.attacks.runner import attack_batch
from sihg.robust.data.samples import Samples
from sihg.robust.evaluation.task import Task
from sihg.robust.gradients import compute_logits, device_of
from sihg.store.arrays import read_arrays, write_arrays
from sihg.store.schema import GalleryHeader

MAX_CLASSES_SHOWN = 20
MAX_CANDIDATES = 16  # broken samples per class, among which one is sought that is classified correctly without attack


def save_gallery(path: Path, task: Task, outcomes: Sequence[Outcome]) -> Path | None:
    """Write the gallery of the strongest attack on images, unless the file has that of a stronger one."""
    outcome, header = strongest_attack(outcomes), task.header
    if outcome is None or not has_pictures(task.samples):
        return None
    same = {name: getattr(header, name) for name in ("sha256", "checkpoint", "data", "split", "norm", "bounds", "rule")}
    classes, eps = task.samples.classes, task.ball.eps
    about = GalleryHeader(**same, eps=eps, classes=classes, attack=outcome.attack, accuracy=outcome.accuracy)
    if has_stronger_gallery(path, about):
        return None
    with replace_gradients(task.model, task.bpda), seeded(header.seed, "gallery", device=device_of(task.model)):
        plan, draws = task.plans[outcome.attack], Draws(header.eot, outcome.votes)
        arrays = make_gallery(task.model, task.samples, plan, outcome, seed=header.seed, draws=draws)
    return write_gallery(path, about, arrays)


def strongest_attack(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the attack with the lowest accuracy, the first of equals; None if there was no attack."""
    attacks = [outcome for outcome in outcomes if outcome.attack != "natural" and not outcome.proof]
    return min(attacks, key=lambda outcome: outcome.accuracy, default=None)


def make_gallery(
    model: nn.Module, samples: Samples, plan: Plan, outcome: Outcome, *, seed: int, draws: Draws = ONCE
) -> dict[str, NDArray[np.generic]]:
    """Attack one sample of each class once more, with the stage of the plan that found its point.

    Draws depend on a sample's number and the seed, not on the other samples of its batch. So this is the point of the
    evaluation, up to rounding, even if a part of the evaluation ran before an interruption. The draws of
    a random model depend on the batch, so of such a model it is another point.
    """
    found_by = _stage_of_point(outcome)
    numbers, before = _choose_samples(model, samples, outcome, found_by)
    x, y = load_rows(model, samples, numbers)
    x_adv, after = x.clone(), before.clone()
    for i, attack in enumerate(plan.values()):
        mine = (found_by[numbers] == i).nonzero().flatten()
        if len(mine):
            verdict = attack_batch(attack, model, x[mine], y[mine], seed, numbers=numbers[mine], draws=draws)
            x_adv[mine], after[mine] = verdict.x_adv.detach(), verdict.prediction
    tensors = {"number": numbers, "label": y, "before": before, "after": after}
    tensors |= {"clean": x.float(), "adversarial": x_adv.float()}
    return {name: value.cpu().numpy() for name, value in tensors.items()}


def _stage_of_point(outcome: Outcome) -> Tensor:
    """Return per sample the stage that broke it, else the stage with gradients that found the smallest margin."""
    stages = outcome.stages or (outcome,)
    unknown = torch.full_like(outcome.margin, math.inf)
    margins = torch.stack([stage.margin if stage.passes else unknown for stage in stages])
    found_by = margins.nan_to_num(math.inf).argmin(0)
    for i, stage in enumerate(stages):
        found_by[stage.attacked & stage.broken] = i
    return found_by


def _choose_samples(model: nn.Module, samples: Samples, outcome: Outcome, found_by: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of a sample per class, and its prediction without attack.

    Best is a sample that an early stage broke and that is classified correctly without attack, then any broken one,
    then that of the smallest margin.
    """
    is_natural = torch.tensor([stage.attack == "natural" for stage in outcome.stages or (outcome,)])
    rank = found_by + len(is_natural) * is_natural[found_by]  # a natural error shows nothing of the attack
    numbers, before = [], []
    for label in samples.y.unique().tolist()[:MAX_CLASSES_SHOWN]:
        mine = (samples.y == label).nonzero().flatten()
        broken = mine[outcome.broken[mine]]
        broken = broken[rank[broken].argsort(stable=True)][:MAX_CANDIDATES]
        nearest = mine[outcome.margin[mine].nan_to_num(math.inf).argmin()]
        candidates = broken if len(broken) else nearest[None]
        predictions = compute_logits(model, load_rows(model, samples, candidates)[0]).argmax(1)
        place = int((predictions == label).int().argmax())  # the first correct one, or the first
        numbers.append(candidates[place])
        before.append(predictions[place])
    return torch.stack(numbers), torch.stack(before)


def write_gallery(path: Path, about: GalleryHeader, arrays: Mapping[str, NDArray[np.generic]]) -> Path:
    """Write the gallery in one small file."""
    return write_arrays(path, {"about": np.array(json.dumps(msgspec.to_builtins(about))), **arrays})


def has_stronger_gallery(path: Path, about: GalleryHeader) -> bool:
    """Return whether the file holds a gallery of the same weights and ball, and of a stronger attack."""
    try:
        there = msgspec.json.decode(str(read_arrays(path, ["about"])["about"]), type=GalleryHeader)
    except (InputError, KeyError, msgspec.DecodeError):  # no gallery, or a damaged one, which is made again
        return False
    same = msgspec.structs.replace(there, attack=about.attack, accuracy=about.accuracy) == about
    return same and there.accuracy < about.accuracy


def has_pictures(samples: Samples) -> bool:
    """Return whether the samples are images, grey or in colour."""
    return len(samples.shape) == 3 and samples.shape[0] in (1, 3)
