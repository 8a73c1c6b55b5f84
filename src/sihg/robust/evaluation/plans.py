"""Turn the names of attacks into the attacks to run, at one radius or at several."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from torch import Tensor, nn

from sihg.errors import InputError
from sihg.parse import Number, parse_int, parse_names, parse_number
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.registry import Plan, build_plan
from sihg.robust.attacks.user_function import FunctionAttack
from sihg.robust.threat import Ball

AttackFunction = Callable[[Tensor, Tensor], Tensor]  # (x, y) -> x_adv
Attacks = str | Sequence[str] | Mapping[str, str | Attack | AttackFunction]
LoadSource = Callable[[str], nn.Module]  # loads the model that transfer:RUN names


def plan_attacks(
    attacks: Attacks, ball: Ball, *, last_iterate: bool = False, source: LoadSource | None = None
) -> dict[str, Plan]:
    """Return for each name the attacks to run, each on the samples that those before did not break."""
    if not isinstance(attacks, Mapping) or not attacks:
        attacks = {name: name for name in attack_names(attacks or "")}
    plans: dict[str, Plan] = {}
    for name, attack in attacks.items():
        if isinstance(attack, str):
            stages = build_plan(attack, ball, last_iterate=last_iterate, source=source)
            plans[name] = stages if len(stages) > 1 else {name: next(iter(stages.values()))}
        else:
            plans[name] = {name: _own_attack(name, attack, ball)}
    return plans


def plan_curve(
    attacks: Attacks,
    ball: Ball,
    radii: Sequence[float],
    *,
    last_iterate: bool = False,
    source: LoadSource | None = None,
) -> dict[str, Plan]:
    """Return for each name its attacks at growing radii: a larger ball holds whatever breaks in a smaller one."""
    plans: dict[str, Plan] = {}
    for name in attack_names(attacks):
        stages: dict[str, Attack] = {}
        for eps in radii:
            inside = Ball(eps, ball.norm, ball.bounds)
            found = build_plan(name if eps else "natural", inside, last_iterate=last_iterate, source=source)
            stages |= {f"{radius_name(eps)} {stage}": attack for stage, attack in found.items()}
        plans[name] = stages
    return plans


def attack_names(attacks: Attacks) -> list[str]:
    """Return the names in "a,b" or in a sequence; a dict is refused, since its attacks have one radius."""
    if isinstance(attacks, Mapping) or not isinstance(attacks, str | Sequence):
        kind = type(attacks).__name__
        raise InputError("attacks-type", kind=kind)
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


def _own_attack(name: str, attack: Attack | AttackFunction, ball: Ball) -> Attack:
    kind = type(attack).__name__
    if isinstance(attack, Attack):
        own = attack.ball
        if not (isinstance(attack, Natural) or own.same_as(ball)):
            raise InputError("attack-ball", name=name, own=own, ball=ball)
        return attack
    if not callable(attack):
        raise InputError("attack-type", name=name, kind=kind)
    function = lambda _model, x, y: attack(x, y)  # noqa: E731
    return FunctionAttack(eps=ball.eps, norm=ball.norm, bounds=ball.bounds, function=function, name=name)
