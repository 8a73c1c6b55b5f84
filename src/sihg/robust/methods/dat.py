"""Dynamic adversarial training (Wang et al., 2019)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import cross_entropy_per_row, cross_entropy_sum, inner_mode, input_gradient
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import DATSettings
from sihg.robust.threat import Feasible, LinfSet


@dataclass(kw_only=True)
class DAT(AdversarialMethod, DATSettings):
    """PGD AT in which a sample stops once its attack is strong enough for this epoch.

    Strength is measured by the first-order stationary condition FOSC, which is 0 at a maximiser. The threshold falls
    linearly from `fosc_max` to 0. A sample at or below it leaves the batch, so the ascent runs in evaluation mode.
    The published FOSC ignores the bounds, so with bounds it rarely reaches 0. The default is the FOSC of the ball
    within its bounds, which does. The authors' code measures FOSC from the random start and weights samples by their
    loss; the paper does neither, and neither do we unless `weighted`.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        steps, step_size: The most ascent steps T, and their length (default 2.5 eps / T).
        fosc_max, control_epochs: The first threshold, and the epochs until it is 0.
        fosc: "bounded" or "published".
        weighted: Whether samples are weighted by their loss.
    Example:
        >>> DAT(eps=0.1, control_epochs=10).threshold(epoch=5)
        0.25
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        delta = self.start(batch, feasible, eps)
        with inner_mode(model, "running"):
            passes = self._ascend(model, batch, delta, feasible, eps)

        def loss(model: nn.Module) -> tuple[Tensor, Tensor]:
            logits = model(batch.x + delta)
            losses = cross_entropy_per_row(logits, batch.y, self.label_smoothing)
            total = losses.sum()
            if self.weighted and batch.epoch > 0:  # their gradient; the loss that is logged has no weights
                weighted = (losses * (losses / losses.mean()).detach()).sum()
                total = weighted + (total - weighted).detach()
            return total, logits

        return self.descend(model, batch, optimizer, loss, passes)

    def _ascend(self, model: nn.Module, batch: Batch, delta: Tensor, feasible: Feasible, eps: float) -> int:
        """Ascend in place, without the samples that have stopped; return the number of passes."""
        if delta.device.type != "cpu":
            return self._ascend_all(model, batch, delta, feasible, eps)
        threshold = self.threshold(batch.epoch)
        eta = self.step_size or 2.5 * eps / self.steps
        rows, x, y, moving, passes = torch.arange(len(delta), device=delta.device), batch.x, batch.y, delta.clone(), 0
        for t in range(self.steps):
            g = input_gradient(model, x + moving, y, cross_entropy_sum)
            passes += len(moving)
            if t > 0:  # the first step always applies
                on = (self.gap(g, moving, feasible, eps) > threshold).nonzero().flatten()
                if len(on) < len(rows):
                    delta[rows] = moving
                    rows, x, y, g, moving, feasible = rows[on], x[on], y[on], g[on], moving[on], feasible.rows(on)
                if not len(rows):
                    return passes
            feasible.climb_(moving, g, eta)
        delta[rows] = moving
        return passes

    def _ascend_all(self, model: nn.Module, batch: Batch, delta: Tensor, feasible: Feasible, eps: float) -> int:
        """Compute all samples in every step and hold those that have stopped: to leave them out, a GPU would wait."""
        eta = self.step_size or 2.5 * eps / self.steps
        moves = torch.ones(len(delta), dtype=torch.bool, device=delta.device)
        for t in range(self.steps):
            g = input_gradient(model, batch.x + delta, batch.y, cross_entropy_sum)
            if t > 0:
                moves &= self.gap(g, delta, feasible, eps) > self.threshold(batch.epoch)
            ahead = feasible.climb_(delta.clone(), g, eta)
            delta.copy_(torch.where(moves.view(-1, *(1,) * (delta.dim() - 1)), ahead, delta))
        return self.steps * len(delta)

    def threshold(self, epoch: int) -> float:
        """Return the FOSC at which a sample stops in this epoch."""
        return max(0.0, self.fosc_max * (1 - epoch / self.control_epochs))

    def gap(self, g: Tensor, delta: Tensor, feasible: Feasible, eps: float) -> Tensor:
        """Return the FOSC of each row: the maximum over the set of <g, delta' - delta>."""
        if self.fosc == "bounded" and isinstance(feasible, LinfSet):
            best = torch.maximum(g * (feasible.high - delta), g * (feasible.low - delta))
            return best.flatten(1).sum(1)
        order = {"linf": 1, "l2": 2, "l1": math.inf}[self.norm]  # of the dual norm
        size: Tensor = torch.linalg.vector_norm(g.flatten(1), ord=order, dim=1)
        return eps * size - (g * delta).flatten(1).sum(1)
