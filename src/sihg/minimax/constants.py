"""The constants of Assumptions 1 to 3 of the paper."""

from dataclasses import dataclass, fields
from math import isfinite

from sihg.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Known constants of a problem; None means not known.

    Args:
        L11: Lipschitz constant of grad_w phi in w (Assumption 1).
        L12: Lipschitz constant of grad_w phi in delta, and of grad_delta phi in w.
        L22: Lipschitz constant of grad_delta phi in delta.
        rho: The constant of the weak Minty variational inequality, weak MVI (Assumption 2).
        mu: The constant of the strong MVI (Assumption 3).
        L12_block: Lipschitz constant of grad_w phi when one block moves (max_i L12,i), at most L12. SSI-HG uses it
            instead of L12 if it is given.
        source: Where the numbers come from, for messages.
    Raises:
        InputError: If a constant is negative or not finite.
    Example:
        >>> Constants(L11=0, L12=1, L22=0).lipschitz_known
        True
    """

    L11: float | None = None
    L12: float | None = None
    L22: float | None = None
    rho: float | None = None
    mu: float | None = None
    L12_block: float | None = None
    source: str = "the problem's constants"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "source" or value is None:
                continue
            if not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
                raise InputError("constant-range", name=field.name, value=value)

    @property
    def lipschitz_known(self) -> bool:
        """Whether L11, L12 and L22 are all known."""
        return None not in (self.L11, self.L12, self.L22)
