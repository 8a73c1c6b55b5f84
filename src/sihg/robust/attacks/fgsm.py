"""The fast gradient sign method: one step of length eps from the image."""

from sihg.robust.attacks.pgd import PGD
from sihg.robust.threat import Bounds


def FGSM(  # noqa: N802
    *, eps: float, norm: str = "linf", bounds: Bounds = (0.0, 1.0), last_iterate: bool = False
) -> PGD:
    """PGD with T = 1, from x itself, with the step eps (Goodfellow et al., 2015); x counts too, as PGD's start does."""
    return PGD(
        eps=eps,
        steps=1,
        norm=norm,
        step_size=eps or None,
        bounds=bounds,
        last_iterate=last_iterate,
        random_start=False,
    )
