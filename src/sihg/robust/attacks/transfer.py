"""Adversarial examples made on another model."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack, Search, check_counts
from sihg.robust.attacks.pgd import PGD
from sihg.robust.gradients import evaluation_mode


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer(Attack):
    """The ends of a run of PGD on `source`; passes are the source's, the model itself is looked at once."""

    source: nn.Module
    steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps)
        if not isinstance(self.source, nn.Module):
            raise InputError(f"the source of a transfer is a {type(self.source).__name__}: give a torch.nn.Module")

    def check(self, model: nn.Module, x: Tensor) -> None:  # noqa: ARG002
        """Refuse a source that does not take the samples."""
        try:
            with evaluation_mode(self.source), torch.no_grad():
                self.source(x.clone())
        except Exception as error:
            why = (str(error) or repr(error)).splitlines()[0]
            raise InputError(
                f"the source of a transfer does not take samples of shape {tuple(x.shape[1:])} ({why}): give one that "
                "was trained on such"
            ) from error

    def search(self, search: Search, seed: int) -> None:
        """Attack the source to the end, whether or not it breaks on the way, and look at the points."""
        rows = search.rows
        attack = PGD(eps=self.eps, norm=self.norm, bounds=self.bounds, steps=self.steps, last_iterate=True)
        found = attack.run(self.source, rows.x, rows.y, seed, numbers=rows.number)
        search.passes += found.passes
        search.forwards += found.forwards
        search.keep(rows, found.x_adv, search.look(rows, found.x_adv))
