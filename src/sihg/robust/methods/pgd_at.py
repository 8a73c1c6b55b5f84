"""PGD adversarial training (Madry et al., 2018)."""

from dataclasses import dataclass

from torch import nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import ascend, inner_mode, slope
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import PGDSettings


@dataclass(kw_only=True)
class PGDAT(AdversarialMethod, PGDSettings):
    r"""T ascent steps of 2.5 eps / T from a random start, then train there.

    $$\delta^{t+1} = \Pi_B[\delta^t + \eta \operatorname{sign} \nabla_\delta \ell(x + \delta^t, y, w)], \qquad
    t = 0, \ldots, T - 1$$

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        steps, step_size: The number of ascent steps T, and their length (default 2.5 eps / T).
        statistics: Which statistics batch normalisation uses in the ascent: "batch" or "running".
    Example:
        >>> PGDAT(eps=0.1, steps=7).steps
        7
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        delta = self.start(batch, feasible, eps)
        eta = self.step_size or 2.5 * eps / self.steps
        with inner_mode(model, self.statistics):
            ascend(slope(model, batch.x, batch.y), delta, feasible, eta, self.steps)
        return self.train_on(model, batch, batch.x + delta, optimizer, passes=self.steps * len(delta))
