"""Free adversarial training (Shafahi et al., 2019)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import backward, cross_entropy_sum
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer, log
from sihg.robust.methods.settings import FreeSettings


@dataclass(kw_only=True)
class FreeAT(FreeSettings, AdversarialMethod):
    """Replay each batch m times; one backward pass serves both delta and the weights.

    delta stays with its slot of the batch, over the replays and on to the next batch. An epoch costs m passes, so give
    a run 1/m of the epochs of the others.
    """

    delta: Tensor | None = field(default=None, init=False, repr=False)

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        if self.delta is None or len(self.delta) < len(batch.x):
            self.delta = torch.zeros_like(batch.x)
        delta = feasible.project_(self.delta[: len(batch.x)])  # a view: the slots keep what is done to it
        for _ in range(self.replays):
            point = (batch.x + delta).requires_grad_()
            optimizer.zero_grad()
            logits = model(point)
            loss = backward(cross_entropy_sum(logits, batch.y), point, batch.size)
            optimizer.step()
            assert point.grad is not None
            feasible.climb_(delta, point.grad, eps)
        return log(loss, logits.detach(), batch.y, passes=self.replays * len(delta))

    def state(self) -> dict[str, Tensor]:
        """What the next batch needs."""
        return {} if self.delta is None else {"delta": self.delta.clone()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state`."""
        self.delta = state.get("delta")
