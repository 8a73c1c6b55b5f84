"""FGSM-PGI (Jia et al., 2022), with the prior of all previous epochs: FGSM-MEP, and FGSM-EP without momentum."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import inner_mode, slope, unwrap
from sihg.robust.methods.base import Log, Optimizer
from sihg.robust.methods.memory_method import MemoryMethod
from sihg.robust.methods.settings import FGSMPGISettings

MAX_MOMENTUM = {"linf": 8.0, "l2": 1024.0, "l1": 1024.0}  # the range of the memory: one byte, or 16 bits per entry


@dataclass(kw_only=True)
class FGSMPGI(FGSMPGISettings, MemoryMethod):  # settings first: they change a default of the base
    r"""One step from a stored perturbation; a regulariser keeps the outputs before and after it alike.

    $$g = \nabla_\delta \ell(\delta_i), \quad \delta = \Pi[\delta_i + \alpha\,\mathrm{sign}(g)], \quad
    m_i^+ = g / \|g\|_1 + \mu m_i, \quad \delta_i^+ = \Pi[\delta_i + \alpha\,\mathrm{sign}(m_i^+)]$$

    It trains on the loss at delta plus lambda times the mean squared difference of the outputs at delta and delta_i,
    and differentiates both. After a reset, delta_i is a random corner and m_i is zero; pixels that a crop cuts away in
    that epoch keep 0. With mu = 0 it stores what it trains on (FGSM-EP), and the memory holds no momentum.

    As in the authors' code, the step raises the smoothed loss, and lambda multiplies a mean over classes. Their labels
    keep 0.6, which for C classes is label_smoothing = 0.4 C / (C - 1): 0.444 for 10 classes. Unlike there, the gradient
    is normalised per sample instead of per batch, and the stored perturbation follows its image. The authors' code also
    reuses the outputs at delta_i that its attack computed, 2 forward and 3 backward passes, or 2.5 of our passes. Here
    they are computed again, which makes 3.

    The momentum is kept in units of the mean |g| of its sample. For linf, where only its sign matters, it is cut at 8,
    so that one byte resolves 8/127 of that mean.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        alpha: The length of the step, in units of eps.
        momentum_decay: The weight mu of earlier gradients.
        regularization: The weight lambda of the regulariser.
        reset: The epochs after which the memory starts again (0: never).
        statistics, augment_delta: See `sihg train --help`.
        memory: A memory for a loop of your own, with rows of `row_shape`; the trainer makes one by `bind`.
    Example:
        >>> FGSMPGI(eps=0.1).row_shape((3, 32, 32))
        (6, 32, 32)
    """

    def row_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what is stored per sample: a perturbation and, behind its channels, the momentum."""
        return (2 * shape[0], *shape[1:]) if self.momentum_decay else shape

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        ball, eps = self.ball(batch)
        recalled = self.recall(batch)
        stored, momentum = self._split(recalled.delta)
        if self.starts_again(batch):
            prior = ball.climb_(torch.zeros_like(batch.x), batch.normal("start"), self.alpha * eps)  # a corner
        else:
            prior = ball.project_(stored.clone())
        with inner_mode(model, self.statistics):
            g = slope(model, batch.x, batch.y, self.training_loss)(prior)
        most = MAX_MOMENTUM[self.norm]
        momentum = (_normalised(g) + self.momentum_decay * momentum).clamp_(-most, most)
        delta = ball.climb_(prior.clone(), g, self.alpha * eps)
        ahead = ball.climb_(prior.clone(), momentum.clone(), self.alpha * eps) if self.momentum_decay else delta
        self.keep(batch, recalled, self._join(ahead, momentum))

        def loss(model: nn.Module) -> tuple[Tensor, Tensor]:
            logits = model(batch.x + delta)
            value = self.training_loss(logits, batch.y)
            if self.regularization:
                before = unwrap(model)(batch.x + prior)  # DDP allows one forward pass of its own per backward pass
                value = value + self.regularization * mse_loss(logits, before, reduction="sum") / logits.shape[1]
            return value, logits

        moved, saturated = self.mean_move(ahead, prior), ball.saturated(ahead)
        cost = 2 if self.regularization else 1
        return self.descend(
            model, batch, optimizer, loss, passes=len(delta), cost=cost, moved=moved, saturated=saturated
        )

    def _split(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the perturbation and the momentum of rows of the memory."""
        if not self.momentum_decay:
            return row, torch.zeros_like(row)
        delta, momentum = row.chunk(2, 1)
        return delta, momentum * (MAX_MOMENTUM[self.norm] / self.eps)

    def _join(self, delta: Tensor, momentum: Tensor) -> Tensor:
        """Return rows for the memory, whose entries are at most eps."""
        if not self.momentum_decay:
            return delta
        return torch.cat([delta, momentum * (self.eps / MAX_MOMENTUM[self.norm])], 1)

    def memory_row(self, epoch: int) -> dict[str, float]:
        """Return the histogram of the stored perturbations alone."""
        return self._histogram(epoch, parts=2 if self.momentum_decay else 1)


def _normalised(gradient: Tensor) -> Tensor:
    """Return the gradient of each sample in units of its mean size."""
    size = gradient.abs().flatten(1).mean(1).clamp_(min=torch.finfo(gradient.dtype).tiny)
    return gradient / size.view(-1, *(1,) * (gradient.dim() - 1))
