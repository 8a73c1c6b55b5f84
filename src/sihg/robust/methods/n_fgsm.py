"""N-FGSM (de Jorge et al., 2022)."""

from dataclasses import dataclass

from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import inner_mode, slope
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import NFGSMSettings
from sihg.robust.threat import Ball


@dataclass(kw_only=True)
class NFGSM(AdversarialMethod, NFGSMSettings):
    """One step of length eps from noise of radius k eps, without a projection onto the ball, then train there.

    It trains on perturbations of up to (k + alpha) eps. Only the bounds cut them: the noise before the gradient is
    taken there, and the result of the step. In l2 and l1 the noise and the step are those of these balls; the authors
    have linf alone. With k = 0 and alpha = 1 it is FGSM AT.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        k: The radius of the noise, in units of eps.
        alpha: The length of the step, in units of eps.
    Example:
        >>> NFGSM(eps=0.1).k
        2.0
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        eps = self.radius(batch)
        box = Ball(eps, self.norm, self.bounds).box_around(batch.x)
        delta = self.start(batch, box, self.k * eps)
        with inner_mode(model, "batch"):
            box.climb_(delta, slope(model, batch.x, batch.y)(delta), self.alpha * eps)
        return self.train_on(model, batch, batch.x + delta, optimizer, passes=len(delta))
