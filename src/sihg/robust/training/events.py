"""What a training reports: events while it runs, the warnings among them, and its result. Needs no torch.

A logger is any callable that takes one of these events.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from sihg.store.schema import MetricsRow, MonitorState

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

ONE_CLASS_SHARE = 0.97  # of predictions that are the most frequent of their batch, on average over an epoch
COLLAPSE = 0.2  # fall of the robust accuracy that is more than noise
SATURATED_SHARE = 0.98  # of perturbation entries on the boundary
LEAST_MOVE = 1e-3  # mean move of the memory in units of eps
MAX_FIRST_SHARE = 0.05  # of the first weights in their average, at the end of a run


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


# ---- warnings: each names a sign that training goes wrong, and a remedy


def check_epoch(state: MonitorState, row: MetricsRow, most_predicted: float, norm: str = "linf") -> list[WarningRaised]:
    """Return the warnings that an epoch gives, each kind once per run, and update the state.

    Args:
        state: What the warnings depend on; changed in place.
        row: The metrics of the epoch.
        most_predicted: The share of samples that were predicted as the most frequent class of their batch.
        norm: The norm of the ball. Perturbations belong on the sphere of an l2 or l1 ball, not on the faces of a box.
    """
    found = _signs(state, row, most_predicted)
    if norm != "linf":
        found.pop("saturated", None)
    if row.robust is not None:
        state.best = max(state.best, row.robust)
    new = {kind: text for kind, text in found.items() if kind not in state.said}
    state.said += new
    return [WarningRaised(kind, text, row.epoch) for kind, text in new.items()]


def check_end(epochs: int, eps: float, ramp: float, ema: float, averaged_steps: int) -> list[WarningRaised]:
    """Return the warnings of a finished run: the radius never reached eps, or the average is too young."""
    signs = {}
    share = ema ** (averaged_steps - 1) if ema else 0.0
    if share >= MAX_FIRST_SHARE:
        signs["short-average"] = (
            f"{share:.0%} of the averaged weights, which are evaluated, are those of the first step: ema = {ema:g} "
            f"averages over {1 / (1 - ema):.0f} steps, and the run had {averaged_steps}: lower ema, or train longer"
        )
    if ramp >= epochs:
        signs["long-ramp"] = (
            f"the radius grows over ramp = {ramp:g} epochs and the run had {epochs}, so it never trained at "
            f"eps = {eps:g}: shorten the ramp, or train longer"
        )
    return [WarningRaised(kind, text, epochs) for kind, text in signs.items()]


def _signs(state: MonitorState, row: MetricsRow, most_predicted: float) -> dict[str, str]:
    signs = {}
    accuracy = row.accuracy or 0.0
    if most_predicted >= ONE_CLASS_SHARE and accuracy < 0.9 * most_predicted:  # else most samples have that label
        signs["constant"] = (
            f"{most_predicted:.1%} of a batch's predictions in epoch {row.epoch} were one class: start with a smaller "
            "radius (ramp 3), or use another learning rate"
        )
    if row.robust is not None and row.robust < state.best - COLLAPSE:
        signs["overfitting"] = (
            f"robust accuracy fell from {state.best:.1%} to {row.robust:.1%} in epoch {row.epoch}, while it is "
            f"{accuracy:.1%} under the training attack (catastrophic overfitting): use the best checkpoint, or train "
            "with more ascent steps"
        )
    if row.saturated is not None and row.saturated >= SATURATED_SHARE:
        signs["saturated"] = (
            f"{row.saturated:.1%} of the stored perturbations of epoch {row.epoch} lie on the boundary of the searched "
            "set, so the memory is no better than random corners: lower tau, step_size or alpha"
        )
    if row.moved is not None and row.epoch > 1 and row.moved < LEAST_MOVE:
        signs["still"] = (
            f"the stored perturbations moved by {row.moved:.2g} eps on average in epoch {row.epoch}: raise tau or "
            "step_size"
        )
    return signs


# ---- the result


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
        count = f"{len(self)} epoch{'' if len(self) == 1 else 's'}"
        return f"TrainingHistory({', '.join([count, *_shown(self._rows[-1] if self else None)])})"

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw loss, natural and robust accuracy against the epoch; training accuracy if nothing was held out.

        Args:
            path: Where to save the figure, such as history.png (default: nowhere).
        Returns:
            The figure.
        """
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot([row.epoch for row in self], [row.loss for row in self], "o-")
        left.set(xlabel="epoch", ylabel="training loss")
        held_out = any(row.natural is not None for row in self)
        for name in ("natural", "robust") if held_out else ("accuracy",):
            points = [(row.epoch, 100 * share) for row in self if (share := getattr(row, name)) is not None]
            right.plot(*zip(*points, strict=True) if points else ((), ()), "o-", label=name)
        right.set(xlabel="epoch", ylabel=f"{'held-out' if held_out else 'training'} accuracy (%)", ylim=(0, 102))
        if held_out:
            right.legend()
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        if path is not None:
            figure.savefig(path)
        return figure


@dataclass(frozen=True)
class Trained:
    """How a training ended.

    Args:
        model: The model in evaluation mode, with averaged weights if the run averages. An evaluation of it knows the
            method, unless other weights are loaded into it.
        history: The epochs of this process.
        best: The row of the best held-out robust accuracy.
        warnings: What the monitor warned of.
        finished: Whether all epochs are done.
        stopped: Why it ended.
        last: The metrics of the last epoch, also if another process trained it.
    Example:
        >>> from torch import nn
        >>> Trained(nn.Linear(2, 2), TrainingHistory(), None, [], True, "3 epochs done")
        Trained(3 epochs done)
    """

    model: "nn.Module"
    history: TrainingHistory
    best: MetricsRow | None
    warnings: list[str]
    finished: bool
    stopped: str
    last: MetricsRow | None = None

    def __repr__(self) -> str:
        best = [] if self.best is None else [f"best epoch {self.best.epoch}"]
        return f"Trained({', '.join([self.stopped, *_shown(self.last), *best])})"


def _shown(row: MetricsRow | None) -> list[str]:
    if row is None:
        return []
    shares = [(name, share) for name in ("natural", "robust") if (share := getattr(row, name)) is not None]
    return [f"loss {row.loss:.3f}", *(f"{name} {100 * share:.1f} %" for name, share in shares)]
