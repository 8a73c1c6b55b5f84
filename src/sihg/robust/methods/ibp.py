"""Interval bound propagation (Gowal et al., 2018)."""

from dataclasses import dataclass

from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.methods.base import (
    INTERVAL_PASSES,
    AdversarialMethod,
    Log,
    Optimizer,
    train_on,
)
from sihg.robust.methods.settings import IBPSettings


@dataclass(kw_only=True)
class IBP(IBPSettings, AdversarialMethod):
    """Train on the images as they are and, for a share of the loss, on what interval bounds of the ball allow.

    What it learns can be proven: see the `certified` row of an evaluation. The share grows with the ramp, which should
    take a third of the training or so.
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        ball, _ = self.ball(batch)
        transform = self.bounded(model, batch, ball, self.interval)
        return train_on(model, batch, batch.x, optimizer, INTERVAL_PASSES * len(batch.x), transform)
