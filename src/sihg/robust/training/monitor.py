"""Signs, seen while training, that it goes wrong; each with its remedy."""

from dataclasses import dataclass, field
from typing import Any

CONSTANT = 0.97  # share of predictions that are the most frequent of their batch, on average over an epoch
COLLAPSE = 0.2  # fall of the robust accuracy that is no noise
SATURATED = 0.98  # share of perturbation entries on the boundary
STILL = 1e-3  # mean move of the memory in units of eps
OLD = 0.05  # share of the first weights in their average, at the end of a run


@dataclass
class Watch:
    """Looks at each epoch's row and says, once a kind, what is wrong."""

    best: float = 0.0
    said: list[str] = field(default_factory=list)

    def look(self, row: dict[str, Any], most_predicted: float) -> list[str]:
        """The warnings that this epoch gives."""
        found = self._signs(row, most_predicted)
        if row["robust"] is not None:
            self.best = max(self.best, row["robust"])
        new = [kind for kind in found if kind not in self.said]
        self.said += new
        return [found[kind] for kind in new]

    def _signs(self, row: dict[str, Any], most_predicted: float) -> dict[str, str]:
        """What is wrong with this epoch, by kind."""
        epoch, robust, moved, saturated = (row[name] for name in ("epoch", "robust", "moved", "saturated"))
        signs = {}
        if most_predicted >= CONSTANT and row["accuracy"] < 0.9 * most_predicted:  # else that class is the data's
            signs["constant"] = (
                f"{most_predicted:.1%} of a batch's predictions in epoch {epoch} were one class: start with a smaller "
                "ball (ramp 3), or take another learning rate"
            )
        if robust is not None and robust < self.best - COLLAPSE:
            signs["overfitting"] = (
                f"robust accuracy fell from {self.best:.1%} to {robust:.1%} in epoch {epoch}, while it is "
                f"{row['accuracy']:.1%} under the training attack (catastrophic overfitting): take the best "
                "checkpoint, or train with more ascent steps"
            )
        if saturated is not None and saturated >= SATURATED:
            signs["saturated"] = (
                f"{saturated:.1%} of the stored perturbations of epoch {epoch} lie on the boundary of what is "
                "searched, so the memory adds nothing to random corners: lower tau or step_size"
            )
        if moved is not None and epoch > 1 and moved < STILL:
            signs["still"] = (
                f"the stored perturbations moved by {moved:.2g} eps on average in epoch {epoch}: raise tau or step_size"
            )
        return signs


def short_average(ema: float, steps: int) -> list[str]:
    """The warning of a run whose averaged weights have hardly left those they began with."""
    share = ema ** (steps - 1)
    if share < OLD:
        return []
    return [
        f"{share:.0%} of the averaged weights, which are evaluated, are those of the first step: ema = {ema:g} looks "
        f"back {1 / (1 - ema):.0f} steps, and the run had {steps}: lower ema, or train longer"
    ]


def long_ramp(ramp: float, epochs: int, eps: float) -> list[str]:
    """The warning of a run that ends before its ball has grown."""
    if ramp < epochs:
        return []
    return [
        f"the ball grows over ramp = {ramp:g} epochs and the run had {epochs}, so it never trained at eps = {eps:g}: "
        "shorten the ramp, or train longer"
    ]
