"""Attacks towards classes that the user chooses: a sample is broken where it is predicted as its target."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.search import Search
from sihg.robust.waits import upload

FORMS = "natural, fgsm, pgd-T, mi-fgsm, apgd-ce, apgd-t, fab-t, cw or noise"


@dataclass(frozen=True, kw_only=True, eq=False)
class Targeted(Attack):
    """An attack that turns each sample into its own target class; other wrong classes do not count.

    Losses go up with the logit of the target; the margin is the largest other logit minus that of the target.

    Args:
        attack: Natural, PGD, MIFGSM, APGD, FAB, CW or Noise, with the same ball.
        targets: The class per sample, by the numbers of the samples.
    Raises:
        InputError: If the attack knows no targets.
    """

    attack: Attack
    targets: Tensor = field(repr=False)
    digest: str = field(init=False)  # of the targets, which tells evaluations apart

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.attack.takes_targets:
            raise InputError("attack-without-targets", name=type(self.attack).__name__, forms=FORMS)
        digest = sha256(self.targets.cpu().long().numpy().tobytes()).hexdigest()
        object.__setattr__(self, "digest", digest)

    @property
    def uses_margin(self) -> bool:
        """Whether it compares logits."""
        return self.attack.uses_margin

    def check(self, model: nn.Module, x: Tensor) -> None:
        """Raise InputError for a model that the attack cannot attack."""
        self.attack.check(model, x)

    def remark(self, classes: int) -> str:
        """Return what the attack says."""
        return self.attack.remark(classes)

    def max_passes(self, classes: int) -> float | None:
        """Return those of the attack, which has one target."""
        return self.attack.max_passes(min(classes, 2))

    def search(self, search: Search, seed: int) -> None:
        """Attack rows that know their targets."""
        target = upload(self.targets, search.rows.x.device).index_select(0, search.rows.number)
        search.rows = replace(search.rows, target=target)
        self.attack.search(search, seed)


def aim(attack: Attack, targets: object, y: Tensor, numbers: Tensor | None) -> Targeted:
    """Return the attack with the target of each row; `numbers` are those of the rows in a larger set."""
    chosen = check_targets(targets, y.cpu())
    if numbers is not None:
        largest = int(numbers.max()) if len(numbers) else -1
        chosen = chosen.new_zeros(largest + 1).index_copy(0, numbers.cpu(), chosen)
    return _aim(attack, chosen)


def aim_plans(plans: Mapping[str, Plan], targets: Tensor) -> dict[str, Plan]:
    """Return the plans with these targets; raise InputError for an attack that knows none."""
    for name, plan in plans.items():
        if not all(attack.takes_targets for attack in plan.values()):
            raise InputError("attack-without-targets", name=name, forms=FORMS)
    return {name: {stage: _aim(attack, targets) for stage, attack in plan.items()} for name, plan in plans.items()}


def _aim(attack: Attack, targets: Tensor) -> Targeted:
    return Targeted(eps=attack.eps, norm=attack.norm, bounds=attack.bounds, attack=attack, targets=targets)


def check_targets(targets: object, y: Tensor, classes: int | None = None) -> Tensor:
    """Return the target of each label; raise InputError unless they are other classes, one per sample or one for all.

    Args:
        targets: A tensor or sequence of integers, or an integer.
        y: The labels.
        classes: How many classes there are, if it is known.
    """
    try:
        chosen = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("targets-type", kind=type(targets).__name__) from None
    if chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool:
        raise InputError("targets-type", kind=chosen.dtype)
    if chosen.dim() and chosen.shape != y.shape:
        raise InputError("targets-shape", shape=tuple(chosen.shape), count=len(y))
    chosen = chosen.detach().cpu().long().expand_as(y).clone()
    beyond = (chosen < 0) | (chosen >= (classes or torch.iinfo(torch.int64).max))
    for row in beyond.nonzero().flatten().tolist()[:1]:
        raise InputError("targets-range", row=row, target=int(chosen[row]), most="" if classes is None else classes - 1)
    for row in (chosen == y).nonzero().flatten().tolist()[:1]:
        raise InputError("target-is-label", row=row, target=int(chosen[row]))
    return chosen
