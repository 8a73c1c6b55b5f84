"""Attacks by name, ours and a user's own. Torch is loaded when an attack is built."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sihg.errors import InputError, UnknownNameError
from sihg.user_code import FORMS, call_user_code, load_callable

if TYPE_CHECKING:
    from torch import nn

    from sihg.robust.attacks.base import Attack
    from sihg.robust.threat import Ball

Plan: TypeAlias = "Mapping[str, Attack]"  # attacks by name; each sees the samples that those before did not break
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")  # the attacks of AutoAttack
ATTACK_FORMS = {  # what `build_plan` takes (R: restarts, each on the samples that are not broken yet)
    "natural": "no attack",
    "fgsm": "one step of eps from the image",
    "pgd-T[-R]": "T steps of 2.5 eps / T from a random start",
    "apgd-ce[-T[-R]]": "Auto-PGD on the cross-entropy, T = 100",
    "apgd-t[-T[-R]]": "Auto-PGD on the targeted DLR loss, nine targets, T = 100",
    "fab-t[-T[-R]]": "the targeted fast adaptive boundary attack, nine targets, T = 100",
    "square[-Q[-R]]": "random search by squares, without gradients, Q = 5000 queries",
    "noise[-N]": "N = 10 points anywhere in the ball and N on its surface",
    "transfer:RUN": "the points where PGD-20 on another run ends",
    "standard": f"{', '.join(STANDARD)} in turn, each on the samples that are not broken yet (as AutoAttack)",
    "certified": "no attack: samples that interval bounds prove to hold, a lower bound (linf)",
    FORMS[0]: "your own: a class that derives from Attack, or a function (model, x, y) -> x_adv",
    FORMS[1]: "the same in a file",
}
_STEPS = ("steps", "restarts")
_KINDS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {  # module, class, settings, what numbers mean
    "natural": ("no_attack", "Natural", {}, ()),
    "certified": ("certified", "Certified", {}, ()),
    "fgsm": ("fgsm", "FGSM", {}, ()),
    "pgd": ("pgd", "PGD", {}, _STEPS),
    "apgd-ce": ("apgd", "APGD", {"loss": "ce"}, _STEPS),
    "apgd-t": ("apgd", "APGD", {"loss": "dlr-t"}, _STEPS),
    "fab-t": ("fab", "FAB", {}, _STEPS),
    "square": ("square", "Square", {}, ("queries", "restarts")),
    "noise": ("noise", "Noise", {}, ("draws",)),
}
_MEANT = {name: name for name in ("pgd-20", "standard", *_KINDS) if name != "pgd"}  # for suggestions
_MEANT |= {"pgd": "pgd-20", "pgd20": "pgd-20", "apgd": "apgd-ce", "fab": "fab-t"}
_MEANT |= dict.fromkeys(("autoattack", "aa"), "standard")


def build_plan(
    name: str, ball: "Ball", *, last_iterate: bool = False, source: "Callable[[str], nn.Module] | None" = None
) -> Plan:
    """Build the attack of a name; "standard" is several, each for the samples that those before did not break."""
    if name == "standard":
        return {part: build_attack(part, ball) for part in ("natural", *STANDARD)}
    return {name: build_attack(name, ball, last_iterate=last_iterate, source=source)}


def build_attack(
    name: str, ball: "Ball", *, last_iterate: bool = False, source: "Callable[[str], nn.Module] | None" = None
) -> "Attack":
    """Build an attack within a ball.

    Args:
        name: One of `ATTACK_FORMS`. An attack of your own, `path.py:name` or `package.module:name`, is a class that
            derives from Attack and is built with eps, norm and bounds, or a function (model, x, y) -> x_adv.
        ball: Where the attack may search.
        last_iterate: For PGD and FGSM: count the end of a run only.
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
    settings = {**settings, **dict(zip(counts, numbers, strict=False))}
    if form[1] != "natural":
        settings |= within
    return _find(module, make)(**settings, **({"last_iterate": last_iterate} if form[1] in ("pgd", "fgsm") else {}))


def _build_users_attack(name: str, within: dict[str, Any]) -> "Attack":
    from sihg.robust.attacks.base import Attack

    found = load_callable("attack", name)
    if not isinstance(found, type):
        function = lambda *args: call_user_code("attack", name, found, *args)  # noqa: E731
        code = getattr(found, "__code__", None)
        digest = sha256(Path(code.co_filename).read_bytes()).hexdigest() if code else ""
        return _find("user_function", "FunctionAttack")(**within, function=function, name=name, sha256=digest)
    attack = call_user_code("attack", name, found, **within)
    if not isinstance(attack, Attack):
        raise InputError("not-an-attack", name=name)
    return attack


def _find(module: str, name: str) -> "Callable[..., Attack]":
    return getattr(import_module(f"sihg.robust.attacks.{module}"), name)  # type: ignore[no-any-return]
