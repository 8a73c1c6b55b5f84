"""Free adversarial training (Shafahi et al., 2019)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sihg.robust.data.batches import Batch
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import FreeSettings


@dataclass(kw_only=True)
class FreeAT(AdversarialMethod, FreeSettings):
    """Replay each batch m times; one backward pass serves both delta and the weights.

    delta belongs to a row of the batch and stays there for the next batch. An epoch costs m passes, so train for 1/m
    of the epochs of other methods.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        replays: How often m a batch is replayed.
    Example:
        >>> FreeAT(eps=0.1).replays
        8
    """

    delta: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def optimizer_steps(self) -> int:
        """How many steps of the optimiser it takes per batch."""
        return self.replays

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        *_, last = self.rounds(model, batch, optimizer)
        return last

    def rounds(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Iterator[Log]:
        """Train on one batch, and yield after each replay."""
        feasible, eps = self.ball(batch)
        old = batch.x[:0] if self.delta is None else self.delta
        if self.delta is None or len(old) < len(batch.x):
            self.delta = torch.cat([old, torch.zeros_like(batch.x[len(old) :])])
        delta = feasible.project_(self.delta[: len(batch.x)])  # a view: changes of it stay in self.delta
        earlier = (self.replays - 1) * self.passes_per_gradient(batch) * len(delta)  # a log is of the whole batch
        for _ in range(self.replays):
            point = (batch.x + delta).requires_grad_()
            done = self.train_on(model, batch, point, optimizer, passes=earlier)
            torch.clear_autocast_cache()  # a user's autocast would replay with copies of the old weights
            assert point.grad is not None
            feasible.climb_(delta, point.grad, eps)
            yield done

    def state(self, epoch: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Return delta, with which the next batch starts."""
        return {} if self.delta is None else {"delta": self.delta.clone()}

    def load_state(self, state: Mapping[str, Tensor], epoch: int) -> None:  # noqa: ARG002
        """Continue from the delta of a `state`."""
        self.delta = state.get("delta")
