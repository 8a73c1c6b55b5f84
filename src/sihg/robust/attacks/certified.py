"""The other side of attacks: what interval bounds prove to hold."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack, Search, checked
from sihg.robust.certify import worst_case_margins
from sihg.robust.gradients import evaluation_mode


@dataclass(frozen=True, kw_only=True, eq=False)
class Certified(Attack):
    """Counts a sample as broken unless interval bounds prove, up to rounding, that no point of the ball breaks it.

    So what it leaves is a lower bound of the robust accuracy, as what attacks leave is an upper one. The margin is the
    least that the bounds allow, the prediction the class that it is to.
    """

    proves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm != "linf":
            raise InputError(f"interval bounds are for linf, got {self.norm}: leave certified out")

    def mode(self, model: nn.Module) -> AbstractContextManager[None]:
        """As it is: there are no gradients."""
        return evaluation_mode(model)

    def check(self, model: nn.Module, x: Tensor) -> None:
        """Whether there are bounds for every layer."""
        with evaluation_mode(model), torch.no_grad():
            worst_case_margins(model, x, x, torch.zeros(len(x), dtype=torch.long, device=x.device))

    def remark(self, classes: int) -> str:  # noqa: ARG002
        """How to read it."""
        return "proven by interval bounds, the robust accuracy is at least this"

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Two passes: the middle and the width of every layer's interval."""
        rows = search.rows
        box = rows.feasible
        with torch.no_grad():
            lead = checked(worst_case_margins(search.model, rows.x + box.low, rows.x + box.high, rows.y), rows)
        search.forwards += 2 * len(rows)
        search.classes = lead.shape[1]
        most, nearest = lead.scatter(1, rows.y[:, None], -torch.inf).max(1)
        search.broken, search.margin = most >= 0, -most
        search.prediction = torch.where(search.broken, nearest, rows.y)
