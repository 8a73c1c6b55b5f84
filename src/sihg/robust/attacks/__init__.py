"""Attacks: callable as attack(model, x, y, seed=0) -> x_adv; `run` also gives verdicts and passes."""

from sihg.robust.attacks.fgsm import FGSM
from sihg.robust.attacks.pgd import PGD, Verdict

__all__ = ["FGSM", "PGD", "Verdict"]
