"""Attacks: callable as attack(model, x, y, seed=0) -> x_adv; `run` also gives verdicts, margins and passes."""

from sihg.robust.attacks.apgd import APGD
from sihg.robust.attacks.base import Attack, Verdict
from sihg.robust.attacks.certified import Certified
from sihg.robust.attacks.fab import FAB
from sihg.robust.attacks.fgsm import FGSM
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.noise import Noise
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.square import Square
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.attacks.user_function import FunctionAttack

__all__ = [
    "APGD",
    "FAB",
    "FGSM",
    "PGD",
    "Attack",
    "Certified",
    "FunctionAttack",
    "Natural",
    "Noise",
    "Square",
    "Transfer",
    "Verdict",
]
