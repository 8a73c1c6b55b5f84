"""Natural training: no attack at all."""

from dataclasses import dataclass

from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.methods.base import Log, Optimizer, train_on
from sihg.robust.methods.settings import NaturalSettings


@dataclass(kw_only=True)
class Natural(NaturalSettings):
    """Train on the images as they are."""

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        return train_on(model, batch, batch.x, optimizer, passes=0)
