"""What is known of a problem: the constants of Assumptions 1 to 3."""

from dataclasses import dataclass, fields
from math import isfinite

from sihg.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Lipschitz constants of grad phi (Assumption 1) and the MVI constants rho (2) or mu (3); None: not known.

    `L12_block` bounds the change of grad_w phi when one block moves (max_i L12,i); SSI-HG needs no more than that. It
    is at most L12, which stands in where it is not given. `source` says where the numbers come from.
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
                raise InputError(f"constant {field.name} must be finite and >= 0, got {value}: leave it out if unknown")

    @property
    def lipschitz_known(self) -> bool:
        """Whether L11, L12 and L22 are all given."""
        return None not in (self.L11, self.L12, self.L22)
