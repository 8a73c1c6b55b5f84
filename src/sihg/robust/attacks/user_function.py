"""Anybody's attack, such as another library's."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack, Search, check_points
from sihg.robust.gradients import evaluation_mode


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionAttack(Attack):
    """A function (x, y) -> x_adv, whose points are looked at once; its own passes are not counted."""

    function: Callable[[Tensor, Tensor], Tensor]
    name: str = "an attack of yours"  # by which errors call it

    def mode(self, model: nn.Module) -> AbstractContextManager[None]:
        """As it is: the function may do with it what it wants."""
        return evaluation_mode(model)

    def search(self, search: Search, seed: int) -> None:
        """Call it, with torch's random numbers a function of the seed."""
        rows = search.rows
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            point = self.function(rows.x.clone(), rows.y.clone())
        if not isinstance(point, Tensor) or point.shape != rows.x.shape:
            found = tuple(point.shape) if isinstance(point, Tensor) else type(point).__name__
            raise InputError(
                f"{self.name} gives {found} for samples of shape {tuple(rows.x.shape)}: it must give x_adv, a tensor"
            )
        point = point.detach().to(rows.x)
        check_points(self.name, self.ball, rows.x, point, rows.number)
        search.keep(rows, point, search.look(rows, point))
