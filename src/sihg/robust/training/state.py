"""Where a run is: what, beside tensors, a checkpoint has to keep."""

from dataclasses import dataclass, field
from typing import Any

from sihg.robust.methods import Log
from sihg.robust.training.monitor import Watch


@dataclass
class Tally:
    """Sums over the epoch so far."""

    samples: int = 0
    loss: float = 0.0
    hits: float = 0.0
    moved: float | None = None
    saturated: float | None = None
    constant: float = 0.0  # samples predicted as the most frequent class of their batch

    def add(self, log: Log) -> None:
        """Add a step's."""
        self.samples += log.samples
        self.loss += log.loss * log.samples
        self.hits += log.accuracy * log.samples
        self.moved = _added(self.moved, log.moved, log.samples)
        self.saturated = _added(self.saturated, log.saturated, log.samples)
        self.constant += int(log.predicted.max())

    def mean(self, total: float | None) -> float | None:
        """A sum as a mean."""
        return None if total is None else total / self.samples


@dataclass
class Progress:
    """Where a run is: what, beside tensors, a checkpoint has to keep."""

    epoch: int = 0
    number: int = 0  # batches of this epoch that are done
    passes: float = 0.0  # forward-backward passes so far, in samples
    seconds: float = 0.0  # spent on training
    evaluation_seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    watch: Watch = field(default_factory=Watch)
    best: dict[str, Any] | None = None


def _added(total: float | None, mean: float | None, samples: int) -> float | None:
    return total if mean is None else (total or 0.0) + mean * samples
