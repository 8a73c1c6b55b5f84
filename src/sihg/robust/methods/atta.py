"""ATTA (Zheng et al., 2020)."""

from dataclasses import dataclass

from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import ascend, inner_mode, slope
from sihg.robust.methods.base import Log, Optimizer
from sihg.robust.methods.memory_method import MemoryMethod
from sihg.robust.methods.settings import ATTASettings


@dataclass(kw_only=True)
class ATTA(ATTASettings, MemoryMethod):  # settings first: they change a default of the base
    """Continue the attack of the last epoch: T steps from the stored perturbation, then train there.

    The perturbation follows the augmentation of its image, and starts again every `reset` epochs. It is MSI-HG with
    tau = 2 eps, without noise and with theta = 0. The authors' code restarts from normal noise of size 0.001, counts
    epochs from 1, so that its first period is one epoch shorter, and also keeps what lies in the padding. It has a
    second form with the loss of TRADES.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        steps, step_size: The number of ascent steps T, and their length (default eps / 2).
        noise: The radius of the uniform noise that a search starts with after a reset.
        reset: The epochs after which the memory starts at zero again (0: never).
        statistics, augment_delta: See `sihg train --help`.
        memory: A memory for a loop of your own; the trainer makes one by `bind`.
    Example:
        >>> ATTA(eps=0.1).reset
        10
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        ball, eps = self.ball(batch)
        recalled = self.recall(batch)
        is_new = self.starts_again(batch)
        delta = self.start(batch, ball, self.noise) if is_new else ball.project_(recalled.delta.clone())
        with inner_mode(model, self.statistics):
            ascend(slope(model, batch.x, batch.y), delta, ball, self.step_size or eps / 2, self.steps)
        self.keep(batch, recalled, delta)
        moved, saturated = self.mean_move(delta, recalled.delta), ball.saturated(delta)
        passes = self.steps * len(delta)
        return self.train_on(model, batch, batch.x + delta, optimizer, passes, moved=moved, saturated=saturated)
