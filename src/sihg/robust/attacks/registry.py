"""Attacks by name, as commands and tables call them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from sihg.errors import InputError, UnknownNameError
from sihg.robust.attacks.apgd import APGD
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.certified import Certified
from sihg.robust.attacks.fab import FAB
from sihg.robust.attacks.fgsm import FGSM
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.noise import Noise
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.square import Square
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.threat import Ball

Plan = Mapping[str, Attack]  # attacks by name; each sees what the ones before left
FORMS = (
    *("natural", "fgsm", "pgd-T[-R]", "apgd-ce[-T[-R]]", "apgd-t[-T[-R]]", "fab-t[-T[-R]]", "square[-Q[-R]]"),
    *("noise[-N]", "transfer:RUN", "standard", "certified"),
)
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
MEANT = {name: name for name in ("natural", "fgsm", "pgd-20", *STANDARD, "noise", "standard", "certified")}
MEANT |= {
    "pgd": "pgd-20",
    "pgd20": "pgd-20",
    "apgd": "apgd-ce",
    "fab": "fab-t",
    "autoattack": "standard",
    "aa": "standard",
}


def build_plan(
    name: str, ball: Ball, *, last_iterate: bool = False, source: Callable[[str], nn.Module] | None = None
) -> Plan:
    """What stands behind a name: one attack, or several of which each sees what the ones before left."""
    if name == "standard":
        return {part: build_attack(part, ball) for part in ("natural", *STANDARD)}
    return {name: build_attack(name, ball, last_iterate=last_iterate, source=source)}


def build_attack(
    name: str, ball: Ball, *, last_iterate: bool = False, source: Callable[[str], nn.Module] | None = None
) -> Attack:
    """The attack of that name within the ball; `source` loads the model that `transfer:RUN` names."""
    within: dict[str, Any] = {"eps": ball.eps, "norm": ball.norm, "bounds": ball.bounds}
    if name == "natural":
        return Natural()
    if name == "certified":
        return Certified(**within)
    if name == "fgsm":
        return FGSM(**within, last_iterate=last_iterate)
    if name.startswith("transfer:"):
        if source is None:
            raise InputError(f"{name} is for evaluations of runs: from Python give Transfer(eps=..., source=model)")
        return Transfer(**within, source=source(name.removeprefix("transfer:")))
    form = re.fullmatch(r"(pgd|apgd-ce|apgd-t|fab-t|square|noise)((?:-\d+){0,2})", name)
    numbers = [int(number) for number in form[2].split("-")[1:]] if form else []
    kind = form[1] if form else ""
    if not form or (kind == "pgd" and not numbers) or (kind == "noise" and len(numbers) > 1):
        raise UnknownNameError("attack", name, list(FORMS), MEANT)
    make, settings, counts = _KINDS[kind]
    settings = {**within, **settings, **dict(zip(counts, numbers, strict=False))}
    return make(**settings, last_iterate=last_iterate) if kind == "pgd" else make(**settings)


_STEPS = ("steps", "restarts")
_KINDS: dict[str, tuple[Callable[..., Attack], dict[str, Any], tuple[str, ...]]] = {
    "pgd": (PGD, {}, _STEPS),
    "apgd-ce": (APGD, {"loss": "ce"}, _STEPS),
    "apgd-t": (APGD, {"loss": "dlr-t"}, _STEPS),
    "fab-t": (FAB, {}, _STEPS),
    "square": (Square, {}, ("queries", "restarts")),
    "noise": (Noise, {}, ("draws",)),
}
