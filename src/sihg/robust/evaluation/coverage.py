"""Check which kinds of attacks were run, by what attacks say of themselves; this costs no pass (docs/checks.md)."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.deepfool import DeepFool
from sihg.robust.attacks.mi_fgsm import MIFGSM
from sihg.robust.attacks.nearest import Nearest
from sihg.robust.attacks.noise import Noise
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.evaluation.diagnostics import warn_if
from sihg.robust.evaluation.remedies import real_attacks
from sihg.store.schema import Check

MIN_STEPS = 20  # of the longest attack with gradients
NO_ATTACK = "there is no attack"


def inspect_coverage(
    plans: Mapping[str, Plan], trained_with: str | None, *, masked: bool = False, decided: bool = False
) -> Iterator[Check]:
    """Check that the attacks were strong, long and of several kinds.

    Args:
        plans: What was run.
        trained_with: The method the model was trained with, if known.
        masked: Whether gradients are masked, so that further attacks with gradients would not help.
        decided: Whether every sample is broken or proven robust, so that no further attack can change the result.
    """
    attacks = {name: found for name, plan in plans.items() if (found := real_attacks(plan))}
    unknown = ", ".join(name for name, found in attacks.items() if any(map(_is_unknown, found)))
    for check in (
        _check_strength(attacks, masked=masked),
        _check_steps(attacks),
        _check_black_box(attacks),
        _check_other_attacks(attacks, trained_with),
    ):
        if not attacks:
            yield Check(check.name, "not run", NO_ATTACK)
        elif decided:
            yield Check(check.name, "fine")
        elif unknown and check.result == "warning":  # it may be what is missing
            yield Check(check.name, "not run", f"what {unknown} does is not known, docs/extending.md says how to tell")
        else:
            yield check


def inspect_minimum_coverage(plans: Mapping[str, Plan], outcomes: Sequence[Outcome]) -> Iterator[Check]:
    """Check that the attacks that sought smallest distances were strong and long, where one may be smaller yet."""
    attacks = {name: list(plan.values()) for name, plan in plans.items()}
    if all(bool((outcome.distance == 0).all()) for outcome in outcomes):
        yield from (Check(name, "fine") for name in ("weak attacks", "few steps"))
        return
    strong = any(
        attack.is_restarted or (attack.uses_margin and not _stops_early(attack)) for attack in _flatten(attacks)
    )
    message = (
        f"no attack with restarts or targets sought nearest points, only {', '.join(attacks)}: "
        "the distances and the accuracy may be far too high, add fab-t"
    )
    yield warn_if(not strong, "weak attacks", message)
    yield _check_steps(attacks, "fab-t")


def is_decided(outcomes: Sequence[Outcome]) -> bool:
    """Return whether every sample is broken by an attack or proven robust: further attacks would change nothing."""
    decided = [~outcome.broken if outcome.proof else outcome.broken for outcome in outcomes]
    return bool(torch.stack(decided).any(0).all())


def _is_unknown(attack: Attack) -> bool:
    return attack.uses_gradients is None or (attack.uses_gradients and attack.steps_per_run is None)


def _stops_early(attack: Attack) -> bool:
    """Return whether an attack does not look for a nearer point once it has one."""
    return isinstance(attack, Nearest) and isinstance(attack.attack, DeepFool)


def _check_strength(attacks: Mapping[str, list[Attack]], *, masked: bool) -> Check:
    every, names = _flatten(attacks), ", ".join(attacks)
    kind = "restarts, targets or a margin loss"
    weak = not any(attack.is_restarted or attack.uses_margin for attack in every)
    if not masked and not any(attack.uses_gradients for attack in every):
        kind, weak = "gradients", True
    message = f"no attack with {kind} was run, only {names}: the accuracy may be far too high, add standard"
    return warn_if(weak, "weak attacks", message)


def _check_steps(attacks: Mapping[str, list[Attack]], other: str = "standard") -> Check:
    steps = {
        name: [attack.steps_per_run or 0 for attack in found if attack.uses_gradients is not False]
        for name, found in attacks.items()
        if any(attack.uses_gradients is not False for attack in found)
    }
    if not steps:
        return Check("few steps", "not run", "there is no attack with gradients")
    message = (
        f"no attack with gradients has {MIN_STEPS} steps or more, only {', '.join(steps)}: "
        f"add pgd-{MIN_STEPS} or {other}"
    )
    return warn_if(max(map(max, steps.values())) < MIN_STEPS, "few steps", message)


def _check_black_box(attacks: Mapping[str, list[Attack]]) -> Check:
    message = (
        f"no black-box attack was run, only {', '.join(attacks)}: masked gradients may stay unnoticed, "
        "add square or standard"
    )
    return warn_if(not any(attack.is_black_box for attack in _flatten(attacks)), "no black box", message)


def _check_other_attacks(attacks: Mapping[str, list[Attack]], trained_with: str | None) -> Check:
    """Check that there is another kind of attack than the one the model was trained against."""
    if trained_with in (None, "natural", "ibp"):
        why = "trained_with is not given" if trained_with is None else "it was not trained against an attack"
        return Check("other attacks", "not run", why)
    others = [attack for attack in _flatten(attacks) if not isinstance(attack, Noise | Transfer)]
    if not others:
        return Check("other attacks", "not run", "there is no attack with steps")
    message = f"{trained_with} trains against projected gradient steps, and only these were used: add standard"
    return warn_if(all(isinstance(attack, PGD | MIFGSM) for attack in others), "other attacks", message)


def _flatten(attacks: Mapping[str, list[Attack]]) -> list[Attack]:
    return [attack for found in attacks.values() for attack in found]
