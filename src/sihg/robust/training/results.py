"""What a training returns: the model, its history and how it ended."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from torch import nn

from sihg.store.schema import MetricsRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TrainingHistory(Sequence[MetricsRow]):
    """The metrics of each epoch that this process trained.

    Args:
        rows: The metrics, in order.
    Example:
        >>> TrainingHistory([MetricsRow(epoch=1, step=4, loss=2.3, accuracy=0.1, natural=0.2, robust=0.1)])
        TrainingHistory(1 epoch, loss 2.300, natural 20.0 %, robust 10.0 %)
    """

    def __init__(self, rows: Iterable[MetricsRow] = ()) -> None:
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> MetricsRow: ...
    @overload
    def __getitem__(self, index: slice) -> "TrainingHistory": ...
    def __getitem__(self, index: int | slice) -> "MetricsRow | TrainingHistory":
        return TrainingHistory(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"TrainingHistory({', '.join([_count(len(self)), *_shown(self._rows[-1] if self else None)])})"

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw loss, natural and robust accuracy against the epoch.

        Args:
            path: Where to save the figure, such as history.png (default: nowhere).
        Returns:
            The figure.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot([row.epoch for row in self], [row.loss for row in self], "o-")
        left.set(xlabel="epoch", ylabel="training loss")
        for name in ("natural", "robust"):
            points = [(row.epoch, 100 * share) for row in self if (share := getattr(row, name)) is not None]
            right.plot(*zip(*points, strict=True) if points else ((), ()), "o-", label=name)
        right.set(xlabel="epoch", ylabel="held-out accuracy (%)")
        right.legend()
        if path is not None:
            figure.savefig(path)
        return figure


@dataclass(frozen=True)
class Trained:
    """How a training ended.

    Args:
        model: The model in evaluation mode, with averaged weights if the run averages.
        history: The epochs of this process.
        best: The row of the best held-out robust accuracy.
        warnings: What the monitor warned of.
        finished: Whether all epochs are done.
        stopped: Why it ended.
    Example:
        >>> Trained(nn.Linear(2, 2), TrainingHistory(), None, [], True, "3 epochs done")
        Trained(3 epochs done)
    """

    model: nn.Module
    history: TrainingHistory
    best: MetricsRow | None
    warnings: list[str]
    finished: bool
    stopped: str

    def __repr__(self) -> str:
        last = _shown(self.history[-1] if self.history else None)
        best = [] if self.best is None else [f"best epoch {self.best.epoch}"]
        return f"Trained({', '.join([self.stopped, *last, *best])})"


def _count(epochs: int) -> str:
    return f"{epochs} epoch{'' if epochs == 1 else 's'}"


def _shown(row: MetricsRow | None) -> list[str]:
    if row is None:
        return []
    shares = [(name, share) for name in ("natural", "robust") if (share := getattr(row, name)) is not None]
    return [f"loss {row.loss:.3f}", *(f"{name} {100 * share:.1f} %" for name, share in shares)]
