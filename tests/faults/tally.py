"""Count how many faults were tried and how many the library withstood."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")


@dataclass
class Tally:
    """The outcome of one kind of fault."""

    kind: str
    tried: int = 0
    held: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, failure: str | None) -> None:
        """Count one fault: None if the library withstood it, else a sentence that says what happened."""
        self.tried += 1
        self.held += failure is None
        self.failures += [failure] if failure else []


def spread(items: Sequence[Item], count: int | None) -> list[Item]:
    """Return `count` of the items, evenly spread with the first and the last; None for all."""
    if count is None or count >= len(items):
        return list(items)
    last = len(items) - 1
    return [items[round(i * last / max(count - 1, 1))] for i in range(count)]
