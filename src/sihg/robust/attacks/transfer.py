"""Adversarial examples made on another model."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.search import Search
from sihg.robust.gradients import evaluation_mode, inner_mode


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer(Attack):
    """Attack another model with PGD to the end, and try the points; the passes are those of the other model.

    Args:
        source: The other model, for the same samples.
        steps: Steps of PGD.
    Raises:
        InputError: If the source is not a module ("not-a-module").
    Example:
        >>> attack = Transfer(eps=0.1, source=nn.Linear(2, 3))
        >>> attack(nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    uses_gradients: ClassVar[bool | None] = False
    is_black_box: ClassVar[bool] = True

    source: nn.Module
    steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps)
        if not isinstance(self.source, nn.Module):
            raise InputError("transfer-source-type", type=type(self.source).__name__)

    def check(self, model: nn.Module, x: Tensor) -> None:  # noqa: ARG002
        """Raise InputError if the source does not take the samples."""
        try:
            with evaluation_mode(self.source), torch.no_grad():
                self.source(x.clone())
        except Exception as error:
            why = (str(error) or repr(error)).split("\n")[0]
            raise InputError("transfer-shape", shape=tuple(x.shape[1:]), why=why) from error

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return the passes of PGD, and the forward pass at its point."""
        return self.steps + 2 / 3

    def search(self, search: Search, seed: int) -> None:
        """Attack the source to the end, whether or not it breaks on the way, and record the points."""
        rows, found = search.rows, search.nested(self.source, search.rows)
        attack = PGD(eps=self.eps, norm=self.norm, bounds=self.bounds, steps=self.steps, last_iterate=True)
        with inner_mode(self.source, "running"):
            attack.search(found, seed)
        search.passes += found.passes
        search.forwards += found.forwards
        point = self.ball.clip(found.x_adv)
        search.record(rows, point, search.compute_logits(rows, point))
