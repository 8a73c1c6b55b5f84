"""What a trainer reports while it runs. A logger is any callable that takes one of these events."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sihg.store.schema import MetricsRow


@dataclass(frozen=True)
class StepDone:
    """A batch was trained on."""

    step: int  # over all epochs, from 1
    steps: int  # of the whole run
    row: MetricsRow  # the metrics of the epoch so far


@dataclass(frozen=True)
class EpochDone:
    """An epoch was trained, evaluated and written to metrics.csv."""

    row: MetricsRow

    def __str__(self) -> str:
        row, held_out = self.row, ""
        if row.natural is not None and row.robust is not None:
            held_out = f", held out {100 * row.natural:.1f} % / {100 * row.robust:.1f} % robust"
        return f"epoch {row.epoch}: loss {row.loss:.3f}{held_out}, {row.seconds:.1f} s, {row.passes:.1f} passes"


@dataclass(frozen=True)
class WarningRaised:
    """Training shows a sign of going wrong; each kind is reported once per run."""

    kind: str  # stays the same when the text changes
    text: str
    epoch: int

    def __str__(self) -> str:
        return f"warning: {self.text}"


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is on the disk."""

    path: Path
    step: int


Event = StepDone | EpochDone | WarningRaised | CheckpointSaved
OnEvent = Callable[[Event], object]
