"""Fast adversarial training (Wong et al., 2020)."""

from dataclasses import dataclass

from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import inner_mode, slope
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import FastSettings


@dataclass(kw_only=True)
class FastAT(AdversarialMethod, FastSettings):
    """One step of 1.25 eps from a random start, then train there.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        alpha: The length of the step, in units of eps.
    Example:
        >>> FastAT(eps=0.1).alpha
        1.25
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        delta = self.start(batch, feasible, eps)
        with inner_mode(model, "batch"):
            feasible.climb_(delta, slope(model, batch.x, batch.y)(delta), self.alpha * eps)
        return self.train_on(model, batch, batch.x + delta, optimizer, passes=len(delta))
