"""Natural training: no attack."""

from dataclasses import dataclass

from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.methods.base import Log, Method, Optimizer, train_on
from sihg.robust.methods.settings import NaturalSettings


@dataclass(kw_only=True)
class Natural(NaturalSettings, Method):
    """Train on the samples as they are.

    Example:
        >>> Natural()
        Natural()
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        return train_on(model, batch, batch.x, optimizer, passes=0)
