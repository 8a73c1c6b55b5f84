"""Attacks, one file each: attack(model, x, y, seed=0) -> x_adv; `run` also returns verdicts, margins and passes.

Classes are loaded when first used: names and help need no torch.

Example:
    >>> from sihg.robust.attacks import ATTACK_FORMS
    >>> "standard" in ATTACK_FORMS
    True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sihg.robust.attacks.registry import ATTACK_FORMS, build_attack

if TYPE_CHECKING:
    from sihg.robust.attacks.apgd import APGD as APGD
    from sihg.robust.attacks.base import Attack as Attack
    from sihg.robust.attacks.base import Natural as Natural
    from sihg.robust.attacks.certified import Certified as Certified
    from sihg.robust.attacks.cw import CW as CW
    from sihg.robust.attacks.deepfool import DeepFool as DeepFool
    from sihg.robust.attacks.fab import FAB as FAB
    from sihg.robust.attacks.mi_fgsm import MIFGSM as MIFGSM
    from sihg.robust.attacks.noise import Noise as Noise
    from sihg.robust.attacks.pgd import FGSM as FGSM
    from sihg.robust.attacks.pgd import PGD as PGD
    from sihg.robust.attacks.replaced_gradients import replace_gradients as replace_gradients
    from sihg.robust.attacks.search import Search as Search
    from sihg.robust.attacks.square import Square as Square
    from sihg.robust.attacks.transfer import Transfer as Transfer
    from sihg.robust.attacks.user_function import FunctionAttack as FunctionAttack
    from sihg.robust.attacks.verdict import Verdict as Verdict

_HOMES = {
    name: name.lower() for name in ("APGD", "CW", "Certified", "DeepFool", "FAB", "Noise", "PGD", "Square", "Transfer")
}
_HOMES |= {"Attack": "base", "FGSM": "pgd", "FunctionAttack": "user_function", "MIFGSM": "mi_fgsm", "Natural": "base"}
_HOMES |= {"Search": "search", "Verdict": "verdict", "replace_gradients": "replaced_gradients"}
__all__ = ["ATTACK_FORMS", "build_attack", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sihg.robust.attacks' has no attribute {name!r}")
    return getattr(import_module(f"sihg.robust.attacks.{_HOMES[name]}"), name)
