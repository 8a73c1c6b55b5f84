"""No attack: the samples as they are."""

from dataclasses import dataclass

from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.search import Search
from sihg.robust.threat import Bounds


@dataclass(frozen=True, kw_only=True, eq=False)
class Natural(Attack):
    """Look at x itself, which gives the clean accuracy.

    Args:
        eps: Ignored, as are norm and bounds.
    Example:
        >>> import torch
        >>> Natural().run(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).forwards
        1
    """

    eps: float = 0.0
    bounds: Bounds = None

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Record the samples."""
        search.record_clean()
