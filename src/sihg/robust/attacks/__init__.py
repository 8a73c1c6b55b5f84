"""Attacks: callable as attack(model, x, y, seed=0) -> x_adv; `run` also gives verdicts, margins and passes."""

from sihg.robust.attacks.apgd import APGD
from sihg.robust.attacks.attack import Attack, Verdict
from sihg.robust.attacks.fgsm import FGSM
from sihg.robust.attacks.natural import Natural
from sihg.robust.attacks.pgd import PGD

__all__ = ["APGD", "FGSM", "PGD", "Attack", "Natural", "Verdict"]
