"""FGSM adversarial training (Goodfellow et al., 2015)."""

from dataclasses import dataclass

import torch
from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import inner_mode, slope
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import FGSMSettings


@dataclass(kw_only=True)
class FGSMAT(AdversarialMethod, FGSMSettings):
    """One step of length eps from zero, then train there. Known to overfit catastrophically.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
    Example:
        >>> FGSMAT(eps=0.1).bounds
        (0.0, 1.0)
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        delta = torch.zeros_like(batch.x)
        with inner_mode(model, "batch"):
            feasible.climb_(delta, slope(model, batch.x, batch.y)(delta), eps)
        return self.train_on(model, batch, batch.x + delta, optimizer, passes=len(delta))
