"""The fast gradient sign method: one step of length eps from the image."""

from sihg.parse import Number, parse_number
from sihg.robust.attacks.pgd import PGD
from sihg.robust.threat import Bounds


def FGSM(  # noqa: N802
    *, eps: Number, norm: str = "linf", bounds: Bounds = (0.0, 1.0), last_iterate: bool = False
) -> PGD:
    """Build PGD with one step of length eps from x itself (Goodfellow et al., 2015); x counts too, as PGD's start.

    Args:
        eps: The radius of the ball, a number or text such as "8/255".
        norm: linf or l2.
        bounds: The lowest and the highest value of x + delta, or None.
        last_iterate: Count the end of the step only.
    Returns:
        The attack.
    Example:
        >>> FGSM(eps=0.1).steps
        1
    """
    eps = parse_number(eps, "eps")
    return PGD(
        eps=eps,
        steps=1,
        norm=norm,
        step_size=eps or None,
        bounds=bounds,
        last_iterate=last_iterate,
        random_start=False,
    )
