"""Natural training: no attack."""

from dataclasses import dataclass

from torch import Tensor, nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import cross_entropy_sum
from sihg.robust.methods.base import Log, Method, Optimizer, descend
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

        def loss(model: nn.Module) -> tuple[Tensor, Tensor]:
            logits = model(batch.x)
            return cross_entropy_sum(logits, batch.y), logits

        return descend(model, batch, optimizer, loss, passes=len(batch.x))
