"""Signs, seen while training, that it goes wrong; each with its remedy."""

from dataclasses import dataclass, field
from typing import Any

CONSTANT = 0.995  # share of one class among an epoch's predictions
COLLAPSE = 0.2  # fall of the robust accuracy that is no noise
SATURATED = 0.98  # share of perturbation entries on the boundary
STILL = 1e-3  # mean move of the memory in units of eps


@dataclass
class Watch:
    """Looks at each epoch's row and says, once a kind, what is wrong."""

    best: float = 0.0
    said: list[str] = field(default_factory=list)

    def look(self, row: dict[str, Any], most_predicted: float) -> list[str]:
        """The warnings that this epoch gives."""
        found = dict(self._signs(row, most_predicted))
        if row["robust"] is not None:
            self.best = max(self.best, row["robust"])
        new = [kind for kind in found if kind not in self.said]
        self.said += new
        return [found[kind] for kind in new]

    def _signs(self, row: dict[str, Any], most_predicted: float) -> list[tuple[str, str]]:
        signs = []
        if most_predicted >= CONSTANT:
            signs.append(
                (
                    "constant",
                    f"{most_predicted:.1%} of the predictions of epoch {row['epoch']} were one class: start with a smaller "
                    "ball (ramp 3), or another learning rate",
                )
            )
        if row["robust"] is not None and row["robust"] < self.best - COLLAPSE:
            signs.append(
                (
                    "overfitting",
                    f"robust accuracy fell from {self.best:.1%} to {row['robust']:.1%} in epoch {row['epoch']}, while it is "
                    f"{row['accuracy']:.1%} under the training attack (catastrophic overfitting): take the best checkpoint, or "
                    "train with more ascent steps",
                )
            )
        if row["saturated"] is not None and row["saturated"] >= SATURATED:
            signs.append(
                (
                    "saturated",
                    f"{row['saturated']:.1%} of the stored perturbations lie on the boundary of the ball: lower tau or "
                    "step_size, or the memory adds nothing to random corners",
                )
            )
        if row["moved"] is not None and row["epoch"] > 1 and row["moved"] < STILL:
            signs.append(
                (
                    "still",
                    f"the stored perturbations moved by {row['moved']:.2g} eps on average in epoch {row['epoch']}: raise tau "
                    "or step_size",
                )
            )
        return signs
