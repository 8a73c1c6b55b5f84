"""The target classes of an evaluation: which samples have one, and how records call it."""

from hashlib import sha256

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.targeted import check_targets
from sihg.robust.data.samples import Samples


def select_targets(targets: Tensor | int | None, whole: Samples) -> tuple[Tensor, Tensor | None]:
    """Return the rows to evaluate, and a target for every row of the set, None without targets.

    With one target for all, the samples of that class are left out; with one per sample, none may be its label.
    """
    every = torch.arange(len(whole))
    if targets is None:
        return every, None
    if isinstance(targets, Tensor) and targets.dim():
        return every, check_targets(targets, whole.y)
    if isinstance(targets, bool) or not isinstance(targets, int | Tensor):
        return every, check_targets(targets, whole.y)
    target = int(targets)
    others = every[whole.y != target]
    if target < 0 or not len(others):
        raise InputError("no-samples-for-target", target=target, name=whole.name)
    return others, torch.full_like(whole.y, target)


def check_targeted(targets: Tensor, precision: str, votes: int | None) -> Tensor:
    """Return the targets; raise InputError for settings that attacks with targets do not have."""
    if precision != "float32":
        raise InputError("targets-precision", precision=precision)
    if votes is not None and votes > 1:
        raise InputError("targets-votes", votes=votes)
    return targets


def describe_targets(targets: Tensor) -> str:
    """Return what records call these targets: "class 3", or the first digits of their SHA-256.

    >>> describe_targets(torch.tensor([3, 3]))
    'class 3'
    """
    if bool((targets == targets[0]).all()):
        return f"class {int(targets[0])}"
    return f"own classes {sha256(targets.numpy().tobytes()).hexdigest()[:8]}"
