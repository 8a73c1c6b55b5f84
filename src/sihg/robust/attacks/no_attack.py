"""No attack: the samples as they are."""

from dataclasses import dataclass

from sihg.robust.attacks.base import Attack, Search
from sihg.robust.threat import Bounds


@dataclass(frozen=True, kw_only=True, eq=False)
class Natural(Attack):
    """One look at x itself."""

    eps: float = 0.0
    bounds: Bounds = None

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Look."""
        search.keep(search.rows, search.rows.x, search.look(search.rows, search.rows.x))
