"""The opposite of an attack: interval bounds prove which samples no attack can break."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.search import Search, check_logits
from sihg.robust.certify import worst_case_margins
from sihg.robust.gradients import evaluation_mode


@dataclass(frozen=True, kw_only=True, eq=False)
class Certified(Attack):
    """Count a sample as broken unless interval bounds prove, up to rounding, that no point of the ball breaks it.

    So its accuracy is a lower bound of the robust accuracy, while that of an attack is an upper bound. The margin is
    the smallest that the bounds allow, the prediction the class that comes closest.

    Args:
        eps: The radius of the ball.
        norm: linf.
        bounds: The lowest and the highest value of x + delta, or None.
    Raises:
        InputError: If the norm is not linf ("interval-norm").
    Example:
        >>> Certified(eps=0.1).run(nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).forwards
        2
    """

    proves: ClassVar[bool] = True
    input_gradients_only: ClassVar[bool] = False
    uses_gradients: ClassVar[bool | None] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm != "linf":
            raise InputError("interval-norm", norm=self.norm)

    def check(self, model: nn.Module, x: Tensor) -> None:
        """Raise InputError unless every layer has interval bounds."""
        with evaluation_mode(model), torch.no_grad():
            worst_case_margins(model, x, x, torch.zeros(len(x), dtype=torch.long, device=x.device))

    def remark(self, classes: int) -> str:  # noqa: ARG002
        """Return how to read the accuracy."""
        return "proven by interval bounds, the robust accuracy is at least this"

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return two forward passes."""
        return 2 / 3

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Compute bounds, which takes two passes: the middle and the width of every layer's interval."""
        rows = search.rows
        box = rows.feasible
        with torch.no_grad():
            lead = check_logits(worst_case_margins(search.model, rows.x + box.low, rows.x + box.high, rows.y), rows)
        search.count(forwards=2 * len(rows))
        search.classes = lead.shape[1]
        most, nearest = lead.scatter(1, rows.y[:, None], -torch.inf).max(1)
        search.broken, search.margin = most >= 0, -most
        search.prediction = torch.where(search.broken, nearest, rows.y)
