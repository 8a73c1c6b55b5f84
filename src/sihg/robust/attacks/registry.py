"""Attacks by name, ours and a user's own, at one radius or at several. Torch is loaded when an attack is built."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from sihg.errors import InputError, UnknownNameError
from sihg.parse import Number, parse_int, parse_names, parse_number
from sihg.user_code import FORMS, call_user_code, load_callable, sha256_of_code

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sihg.robust.attacks.base import Attack
    from sihg.robust.threat import Ball

AttackFunction: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"  # (x, y) -> x_adv
Cascade: TypeAlias = "Mapping[str, str | Attack | AttackFunction]"  # each on the samples that those before left
Attacks: TypeAlias = Union[str, Sequence[str], "Mapping[str, str | Attack | AttackFunction | Cascade]"]
LoadSource: TypeAlias = "Callable[[str], nn.Module]"  # loads the model that transfer:RUN names
Plan: TypeAlias = "Mapping[str, Attack]"  # attacks by name; each sees the samples that those before did not break
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")  # the attacks of AutoAttack
ATTACK_FORMS = {  # what `build_plan` takes (R: restarts, each on the samples that are not broken yet)
    "natural": "no attack",
    "fgsm": "one step of eps from the image",
    "pgd-T[-R]": "T steps of 2.5 eps / T from a random start",
    "mi-fgsm[-T[-R]]": "T = 10 steps of eps / T along a sum of gradients, from the image",
    "apgd-ce[-T[-R]]": "Auto-PGD on the cross-entropy, T = 100 (l1: R = 5)",
    "apgd-dlr[-T[-R]]": "Auto-PGD on the untargeted DLR loss, T = 100",
    "apgd-t[-T[-R]]": "Auto-PGD on the targeted DLR loss, nine targets (l1: five), T = 100",
    "fab-t[-T[-R]]": "the targeted fast adaptive boundary attack, nine targets, T = 100",
    "fab[-T[-R]]": "the same towards the nearest boundary of all classes, a pass for each",
    "deepfool[-T]": "to the nearest linearised class boundary, at most T = 50 times (linf, l2)",
    "cw[-T]": "Carlini and Wagner's attack, T = 1000 Adam steps for each of nine constants (l2)",
    "square[-Q[-R]]": "random search by squares, without gradients, Q = 5000 queries",
    "noise[-N]": "N = 10 points anywhere in the ball and N on its surface",
    "transfer:RUN": "the points where PGD-20 on another run ends",
    "standard": f"{', '.join(STANDARD)} in turn, each on the samples that are not broken yet (as AutoAttack)",
    "certified": "no attack: samples that interval bounds prove robust, a lower bound (linf)",
    FORMS[0]: "your own: a class that derives from Attack, or a function (model, x, y) -> x_adv",
    FORMS[1]: "the same in a file",
}
_STEPS = ("steps", "restarts")
_KINDS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {  # module, class, settings, what numbers mean
    "natural": ("base", "Natural", {}, ()),
    "certified": ("certified", "Certified", {}, ()),
    "fgsm": ("pgd", "FGSM", {}, ()),
    "pgd": ("pgd", "PGD", {}, _STEPS),
    "apgd-ce": ("apgd", "APGD", {"loss": "ce"}, _STEPS),
    "apgd-dlr": ("apgd", "APGD", {"loss": "dlr"}, _STEPS),
    "apgd-t": ("apgd", "APGD", {"loss": "dlr-t"}, _STEPS),
    "fab-t": ("fab", "FAB", {}, _STEPS),
    "fab": ("fab", "FAB", {"targeted": False}, _STEPS),
    "mi-fgsm": ("mi_fgsm", "MIFGSM", {}, _STEPS),
    "deepfool": ("deepfool", "DeepFool", {}, ("steps",)),
    "cw": ("cw", "CW", {}, ("steps",)),
    "square": ("square", "Square", {}, ("queries", "restarts")),
    "noise": ("noise", "Noise", {}, ("draws",)),
}
_L1_SETTINGS: dict[str, dict[str, Any]] = {"apgd-ce": {"restarts": 5}, "apgd-t": {"targets": 5}}  # as AutoAttack
_MEANT = {name: name for name in ("pgd-20", "standard", *_KINDS) if name != "pgd"}  # for suggestions
_MEANT |= {"pgd": "pgd-20", "pgd20": "pgd-20", "apgd": "apgd-ce"}
_MEANT |= {"mifgsm": "mi-fgsm", "c&w": "cw", "carlini": "cw"} | dict.fromkeys(("autoattack", "aa"), "standard")
_HAS_LAST_ITERATE = ("pgd", "fgsm", "mi-fgsm")


def plan_attacks(
    attacks: Attacks,
    ball: "Ball",
    radii: Sequence[float] = (),
    *,
    last_iterate: bool = False,
    source: "LoadSource | None" = None,
) -> dict[str, Plan]:
    """Return for each name the attacks to run, each on the samples that those before did not break.

    Args:
        attacks: Names, or a dict of names, attacks and functions (x, y) -> x_adv. A dict in the dict is a cascade of
            attacks by their own names.
        ball: Where the attacks may search.
        radii: Of a curve: the attacks, by name alone, are run at these growing radii.
        last_iterate: For PGD, FGSM and MI-FGSM: count the end of a run only.
        source: Loads the model that `transfer:RUN` names.
    """
    if radii or not isinstance(attacks, Mapping) or not attacks:
        attacks = {name: name for name in attack_names(attacks or "")}
    plans: dict[str, Plan] = {}
    for name, attack in attacks.items():
        if isinstance(attack, Mapping):
            parts = plan_attacks(attack, ball, last_iterate=last_iterate, source=source)
            plans[name] = _join_plans(name, parts)
        elif not isinstance(attack, str):
            plans[name] = {name: _check_users_attack(name, attack, ball)}
        elif not radii:
            stages = build_plan(attack, ball, last_iterate=last_iterate, source=source)
            plans[name] = stages if len(stages) > 1 else {name: next(iter(stages.values()))}
        else:  # a sample broken in a small ball is broken in every larger one
            curve: dict[str, Attack] = {}
            for eps in radii:
                inside = type(ball)(eps, ball.norm, ball.bounds)
                found = build_plan(name if eps else "natural", inside, last_iterate=last_iterate, source=source)
                curve |= {f"{radius_name(eps)} {stage}": attack for stage, attack in found.items()}
            plans[name] = curve
    return plans


def _join_plans(name: str, parts: Mapping[str, Plan]) -> Plan:
    """Return one plan with the stages of all parts; where two have one name, the later gets that of its part too."""
    from sihg.robust.attacks.certified import Proof

    stages: dict[str, Attack] = {}
    for part, plan in parts.items():
        for stage, attack in plan.items():
            stages[stage if stage not in stages else f"{part}: {stage}"] = attack
    for stage, attack in stages.items():  # what it cannot prove counts as broken, and would not be attacked
        if len(stages) > 1 and attack.proves and not isinstance(attack, Proof):
            raise InputError("proof-in-cascade", name=name, stage=stage)
    return stages if len(stages) > 1 else {name: next(iter(stages.values()))}


def build_plan(name: str, ball: "Ball", *, last_iterate: bool = False, source: "LoadSource | None" = None) -> Plan:
    """Build the attack of a name; "standard" is several, each for the samples that those before did not break."""
    if name == "standard":
        proof: dict[str, Attack] = {}
        if ball.norm == "linf":
            proof = {"certified": _find("certified", "Proof")(eps=ball.eps, bounds=ball.bounds)}
        attacks = {part: build_attack(part, ball) for part in ("natural", *STANDARD)}
        return {"natural": attacks["natural"], **proof, **attacks}
    return {name: build_attack(name, ball, last_iterate=last_iterate, source=source)}


def build_attack(
    name: str, ball: "Ball", *, last_iterate: bool = False, source: "LoadSource | None" = None
) -> "Attack":
    """Build an attack within a ball.

    Args:
        name: One of `ATTACK_FORMS`. An attack of your own, `path.py:name` or `package.module:name`, is a class that
            derives from Attack and is built with eps, norm and bounds, or a function (model, x, y) -> x_adv.
        ball: Where the attack may search.
        last_iterate: For PGD, FGSM and MI-FGSM: count the end of a run only.
        source: Loads the model that `transfer:RUN` names.
    Returns:
        The attack.
    Raises:
        InputError: If there is no such attack, or it is not for such a ball.
    Example:
        >>> from sihg.robust.threat import Ball
        >>> build_attack("pgd-50-10", Ball(0.1)).restarts
        10
    """
    within: dict[str, Any] = {"eps": ball.eps, "norm": ball.norm, "bounds": ball.bounds}
    if name.startswith("transfer:"):
        if source is None:
            raise InputError("transfer-source", name=name)
        return _find("transfer", "Transfer")(**within, source=source(name.removeprefix("transfer:")))
    if ":" in name:
        return _build_users_attack(name, within)
    form = re.fullmatch(rf"({'|'.join(_KINDS)})((?:-\d+){{0,2}})", name)
    numbers = [int(number) for number in form[2].split("-")[1:]] if form else []
    module, make, settings, counts = _KINDS[form[1]] if form else ("", "", {}, ())
    if not form or name == "pgd" or len(numbers) > len(counts):
        raise UnknownNameError("attack", name, list(ATTACK_FORMS), _MEANT)
    own = _L1_SETTINGS.get(form[1], {}) if ball.norm == "l1" else {}
    settings = {**settings, **own, **dict(zip(counts, numbers, strict=False))}
    if form[1] != "natural":
        settings |= within
    if form[1] in _HAS_LAST_ITERATE:
        settings["last_iterate"] = last_iterate
    return _find(module, make)(**settings)


def _build_users_attack(name: str, within: dict[str, Any]) -> "Attack":
    from sihg.robust.attacks.base import Attack

    found = load_callable("attack", name)
    if not isinstance(found, type):
        function = lambda *args: call_user_code("attack", name, found, *args)  # noqa: E731
        digest = sha256_of_source(found)
        return _find("user_function", "FunctionAttack")(**within, function=function, name=name, sha256=digest)
    attack = call_user_code("attack", name, found, **within)
    if not isinstance(attack, Attack):
        raise InputError("not-an-attack", name=name)
    return attack


def _check_users_attack(name: str, attack: "Attack | AttackFunction", ball: "Ball") -> "Attack":
    from sihg.robust.attacks.base import Attack, Natural

    if isinstance(attack, Attack):
        if not (isinstance(attack, Natural) or attack.ball.same_as(ball)):
            raise InputError("attack-ball", name=name, own=attack.ball, ball=ball)
        return attack
    if not callable(attack):
        raise InputError("attack-type", name=name, kind=type(attack).__name__)
    function = lambda _model, x, y: attack(x, y)  # noqa: E731
    within = {"eps": ball.eps, "norm": ball.norm, "bounds": ball.bounds}
    return _find("user_function", "FunctionAttack")(**within, function=function, name=name)


def _find(module: str, name: str) -> "Callable[..., Attack]":
    return getattr(import_module(f"sihg.robust.attacks.{module}"), name)  # type: ignore[no-any-return]


def describe_plans(plans: Mapping[str, Plan]) -> dict[str, dict[str, str]]:
    """Return what tells attacks from others: their settings and, of a user's class, the SHA-256 of its files.

    Raises InputError for a function that is not in a known file: it may have changed unnoticed.
    """
    from sihg.robust.attacks.user_function import FunctionAttack

    for attack in (attack for plan in plans.values() for attack in plan.values()):
        if isinstance(attack, FunctionAttack) and not attack.sha256:
            raise InputError("resume-function", name=attack.name)
    return {name: {stage: _describe(attack) for stage, attack in plan.items()} for name, plan in plans.items()}


def _describe(attack: "Attack") -> str:
    own = [kind for kind in type(attack).__mro__ if kind.__module__.split(".")[0] not in ("sihg", "abc", "builtins")]
    sums = [sha256_of_source(kind) for kind in own]
    if "" in sums:  # a changed class could not be recognised
        raise InputError("resume-function", name=type(attack).__name__)
    return " ".join([repr(attack), *sums])


def sha256_of_source(found: Any) -> str:
    """Return the SHA-256 of the code of a function or class, with what it imports; empty if it is in no file."""
    try:
        file = Path(inspect.getsourcefile(found) or "")
    except (TypeError, OSError):  # a builtin, or written where no file is
        return ""
    return sha256_of_code(file, found.__module__) if file.is_file() else ""


def attack_names(attacks: Attacks) -> list[str]:
    """Return the names in "a,b" or in a sequence; raise InputError for a dict: its attacks have a fixed radius."""
    if isinstance(attacks, Mapping) or not isinstance(attacks, str | Sequence):
        raise InputError("attacks-type", kind=type(attacks).__name__)
    for kind in (type(name).__name__ for name in attacks if not isinstance(name, str)):
        raise InputError("attack-name-type", kind=kind)
    names = parse_names(attacks)
    if not names:
        raise InputError("no-attack")
    return names


def radius_name(eps: float) -> str:
    """Return a radius as the stages of a curve are named."""
    return f"{eps:.12g}"


def parse_curve(text: str) -> list[float]:
    """Convert "A:B:N" to N radii from A to B.

    >>> parse_curve("0:0.5:3")
    [0.0, 0.25, 0.5]
    """
    parts = text.split(":")
    try:
        first, last, count = parse_number(parts[0]), parse_number(parts[1]), parse_int(parts[2])
        if len(parts) != 3:
            raise IndexError
    except (InputError, IndexError, OverflowError):
        raise InputError("curve-form", curve=text) from None
    if not (0 <= first < last < float("inf") and count >= 2):
        raise InputError("curve-range", curve=text)
    return [first + (last - first) * i / (count - 1) for i in range(count)]


def check_radii(radii: Sequence[Number]) -> list[float]:
    """Return the radii as numbers, or raise InputError unless there are two or more and they grow from >= 0."""
    numbers, given = [parse_number(radius, "a radius") for radius in radii], list(radii)
    if len(numbers) < 2 or not numbers[0] >= 0 or any(b <= a for a, b in pairwise(numbers)):
        raise InputError("radii-range", given=given)
    return numbers
