"""TRADES (Zhang et al., 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import ascend, inner_mode, slope, unwrap
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import TRADESSettings


@dataclass(kw_only=True)
class TRADES(AdversarialMethod, TRADESSettings):
    r"""Minimise the loss at the sample plus beta KL(clean || attacked); the attack maximises that divergence.

    $$\ell(x, y, w) + \beta \max_{\delta \in B} \mathrm{KL}(p_w(x) \| p_w(x + \delta))$$

    The attack runs in evaluation mode and computes the clean logits once; the training pass differentiates both.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        beta: The weight of the divergence.
        steps, step_size: The number of ascent steps T, and their length (default 2.5 eps / T).
    Example:
        >>> TRADES(eps=0.1).beta
        6.0
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        delta = feasible.project_(batch.normal("start").mul_(0.001))
        eta = self.step_size or 2.5 * eps / self.steps
        with inner_mode(model, "running"):
            with torch.no_grad():
                clean = log_softmax(unwrap(model)(batch.x), 1)
            objective = lambda logits, _y: divergence(clean, logits)  # noqa: E731
            ascend(slope(model, batch.x, batch.y, objective), delta, feasible, eta, self.steps)

        def loss(model: nn.Module) -> tuple[Tensor, Tensor]:
            natural = model(batch.x)
            attacked = unwrap(model)(batch.x + delta)  # DDP allows one forward pass of its own per backward pass
            kl = divergence(log_softmax(natural, 1), attacked)
            return self.training_loss(natural, batch.y) + self.beta * kl, attacked

        return self.descend(model, batch, optimizer, loss, passes=(self.steps + 0.5) * len(delta), cost=2)


def divergence(clean: Tensor, logits: Tensor) -> Tensor:
    """Return KL(clean || softmax(logits)), summed over the batch; `clean` holds log-probabilities."""
    return kl_div(log_softmax(logits, 1), clean, reduction="sum", log_target=True)
