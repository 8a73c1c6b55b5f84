"""The fast gradient sign method: one step of length eps from the image."""

from sihg.robust.attacks.pgd import PGD
from sihg.robust.ball import Bounds


def FGSM(*, eps: float, norm: str = "linf", bounds: Bounds = (0.0, 1.0)) -> PGD:  # noqa: N802
    """PGD with T = 1, from x itself, with the step eps (Goodfellow et al., 2015)."""
    return PGD(eps=eps, steps=1, norm=norm, step_size=eps or 1.0, bounds=bounds, last_iterate=True, random_start=False)
