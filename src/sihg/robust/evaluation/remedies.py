"""What to do about a weak evaluation, by what was run: a remedy never names what has been tried already."""

from collections.abc import Iterator, Mapping, Sequence

from sihg.robust.attacks.base import Attack, Natural
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.registry import STANDARD, Plan


def real_attacks(plan: Plan) -> list[Attack]:
    """Return the attacks of a plan, without the clean accuracy and proofs."""
    return [attack for attack in plan.values() if not (isinstance(attack, Natural) or attack.proves)]


def has_standard(plans: Mapping[str, Plan]) -> bool:
    """Return whether the attacks of `standard` were run, together or one by one."""
    stages = {stage.rpartition(" ")[2] for plan in plans.values() for stage in plan}  # of a curve: "0.1 apgd-ce"
    return stages.issuperset(STANDARD)


def add_black_box(plans: Mapping[str, Plan], outcomes: Sequence[Outcome]) -> str:
    """Return which black-box attacks to trust where gradients are masked, and what they found; or which to add."""
    found = [
        f"{name}, which breaks {int((stage.attacked & stage.broken).sum())} of {int(stage.attacked.sum())} samples"
        for name, stage in _black_box_stages(plans, outcomes)
    ]
    return f"trust {' and '.join(found)}" if found else "add square"


def add_strength(plans: Mapping[str, Plan]) -> str:
    """Return what to add where attacks with gradients miss samples: standard, else restarts, else nothing."""
    if not has_standard(plans):
        return "add standard"
    attacks = [attack for plan in plans.values() for attack in real_attacks(plan)]
    missing = [
        name
        for name, black_box in (("apgd-t-100-5", False), ("square-5000-5", True))
        if not any(a.is_restarted and a.uses_margin and a.is_black_box == black_box for a in attacks)
    ]
    return f"add {' and '.join(missing)}" if missing else "look for what hides gradients in the model's forward"


def _black_box_stages(plans: Mapping[str, Plan], outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Outcome]]:
    for outcome in outcomes:
        for stage in outcome.stages or (outcome,):
            if plans[outcome.attack][stage.attack].is_black_box:
                yield stage.attack if stage is outcome else f"{stage.attack} in {outcome.attack}", stage
