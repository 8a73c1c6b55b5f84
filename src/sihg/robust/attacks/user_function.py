"""An attack that is a function, such as one of another library."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.output_checks import check_points
from sihg.robust.attacks.search import Search


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionAttack(Attack):
    """Call a function (model, x, y) -> x_adv and look at its points once; its own passes are not counted.

    Args:
        function: It may use torch's global generator, which is seeded for each call.
        name: What errors call it.
        sha256: Of the file of the function, if known; an evaluation can be resumed while it stays the same.
    Example:
        >>> darker = FunctionAttack(eps=0.1, function=lambda model, x, y: (x - 0.1).clamp(min=0))
        >>> darker(nn.Linear(2, 3), torch.full((1, 2), 0.5), torch.tensor([0])).tolist()
        [[0.4000000059604645, 0.4000000059604645]]
    """

    function: Callable[[nn.Module, Tensor, Tensor], Tensor] = field(repr=False)
    name: str = "your attack"
    sha256: str = ""
    input_gradients_only: ClassVar[bool] = False

    def search(self, search: Search, seed: int) -> None:
        """Call the function, and record its points if they lie in the ball."""
        rows = search.rows
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            point = self.function(search.model, rows.x.clone(), rows.y.clone())
        if not isinstance(point, Tensor) or point.shape != rows.x.shape:
            found = tuple(point.shape) if isinstance(point, Tensor) else type(point).__name__
            raise InputError("points-shape", attack=self.name, found=found, shape=tuple(rows.x.shape))
        point = point.detach().to(rows.x)
        check_points(self.name, self.ball, rows.x, point, rows.number)
        search.record(rows, point, search.compute_logits(rows, point))
