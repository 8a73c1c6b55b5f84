"""Interval bound propagation (Gowal et al., 2018)."""

from dataclasses import dataclass

from torch import Tensor, nn

from sihg.robust.data.batches import Batch
from sihg.robust.methods.base import (
    INTERVAL_PASSES,
    AdversarialMethod,
    Log,
    Optimizer,
    check_certifiable,
)
from sihg.robust.methods.settings import IBPSettings


@dataclass(kw_only=True)
class IBP(AdversarialMethod, IBPSettings):
    """Train on the samples and, for a share of the loss, on the interval bounds of the ball.

    The robustness that it learns can be proven: see the `certified` row of an evaluation. The share grows with the
    ramp, which should take about a third of the training.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        interval: The share of the loss that is taken at the interval bounds.
    Example:
        >>> IBP(eps=0.1).interval
        0.5
    """

    def check(self, model: nn.Module, sample: Tensor, *, dtype: str = "int8") -> None:  # noqa: ARG002
        """Raise InputError for a model with layers that have no interval bounds."""
        if self.interval:
            check_certifiable(model, sample)

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        ball, _ = self.ball(batch)
        mix = self.interval_loss(model, batch, ball, self.interval)
        return self.train_on(model, batch, batch.x, optimizer, 0, mix, cost=1 + INTERVAL_PASSES)
