"""PGD adversarial training (Madry et al., 2018)."""

from dataclasses import dataclass

from torch import nn

from sihg.errors import UnknownNameError
from sihg.robust.data.batches import Batch
from sihg.robust.gradients import STATISTICS, ascend, inner_mode, slope
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer, check_positive, check_steps, option, train_on


@dataclass(kw_only=True)
class PGDAT(AdversarialMethod):
    """T ascent steps of 2.5 eps / T from a random start, then train there."""

    steps: int = option(10, "ascent steps T")
    step_size: float | None = option(None, "length of an ascent step (default 2.5 eps / T, eps as ramped)")
    statistics: str = option("batch", "batch normalisation in the ascent: batch (not kept) or running")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps(self.steps)
        check_positive(self.step_size, "step_size")
        if self.statistics not in STATISTICS:
            raise UnknownNameError("statistics", self.statistics, list(STATISTICS))

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        delta = self.start(batch, feasible, eps)
        eta = self.step_size or 2.5 * eps / self.steps
        with inner_mode(model, self.statistics):
            ascend(slope(model, batch.x, batch.y), delta, feasible, eta, self.steps)
        return train_on(model, batch, batch.x + delta, optimizer, passes=self.steps * len(delta))
