"""MART (Wang et al., 2020)."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import ascend, inner_mode, slope, unwrap
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import MARTSettings

MARGIN = 1e-4  # keeps the logarithm finite where a wrong class has probability 1


@dataclass(kw_only=True)
class MART(AdversarialMethod, MARTSettings):
    r"""Train at the adversarial points, and pull the clean prediction along most where it is wrong.

    $$-\log p_y(x') - \log(1 - \max_{k \ne y} p_k(x')) + \beta\, \mathrm{KL}(p(x) \| p(x'))\, (1 - p_y(x))$$

    x' is a PGD point of the cross-entropy. As in the authors' code, the attack starts at normal noise of size 0.001 and
    runs in evaluation mode, and the loss is differentiated through both predictions, also through 1 - p_y(x).

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        beta: The weight of the divergence, the paper's lambda.
        steps, step_size: The number of ascent steps T, and their length (default 2.5 eps / T).
    Example:
        >>> MART(eps=0.1).beta
        5.0
    """

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        feasible, eps = self.ball(batch)
        delta = feasible.project_(batch.normal("start").mul_(0.001))
        eta = self.step_size or 2.5 * eps / self.steps
        with inner_mode(model, "running"):
            ascend(slope(model, batch.x, batch.y), delta, feasible, eta, self.steps)

        def loss(model: nn.Module) -> tuple[Tensor, Tensor]:
            clean = model(batch.x)
            attacked = unwrap(model)(batch.x + delta)  # DDP allows one forward pass of its own per backward pass
            boosted = self.training_loss(attacked, batch.y) + margin_loss(attacked, batch.y)
            return boosted + self.beta * weighted_divergence(clean, attacked, batch.y), attacked

        return self.descend(model, batch, optimizer, loss, passes=self.steps * len(delta), cost=2)


def margin_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return -log(1 - p), summed over the batch; p is the largest probability of a wrong class."""
    wrong = logits.softmax(1).scatter(1, y[:, None], 0.0).amax(1)
    return -(1 + MARGIN - wrong).log().sum()


def weighted_divergence(clean: Tensor, attacked: Tensor, y: Tensor) -> Tensor:
    """Return KL(clean || attacked) (1 - p_y(clean)), summed over the batch, of logits."""
    known = log_softmax(clean, 1)
    divergences = kl_div(log_softmax(attacked, 1), known, reduction="none", log_target=True).sum(1)
    return (divergences * (1 - known.gather(1, y[:, None]).squeeze(1).exp())).sum()
