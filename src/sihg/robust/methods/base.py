"""What every method trains against and reports: the ball, its ramp, and the log of a step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sihg.robust.certify import worst_case_margins
from sihg.robust.data.batches import Batch
from sihg.robust.gradients import backward, cross_entropy_sum
from sihg.robust.methods.settings import AdversarialSettings
from sihg.robust.threat import Ball, Feasible, uniform_noise

INTERVAL_PASSES = 3  # what the training pass of interval bounds takes: middles and widths, each with its weights


class Optimizer(Protocol):
    """What a method asks of an optimiser; every torch optimiser has it."""

    def zero_grad(self) -> Any:
        """Reset the gradients."""
        ...

    def step(self) -> Any:
        """Use them."""
        ...


@dataclass(frozen=True)
class Log:
    """What a step did: means over the samples of its batch, before the weights moved."""

    loss: float
    accuracy: float  # on what it trained on
    samples: int
    passes: float  # forward-backward passes of one sample through the whole network; a lone forward counts one half
    predicted: Tensor  # how often each class was
    moved: float | None = None  # mean |new - old delta| / eps of the memory
    saturated: float | None = None  # share of entries of delta (l2: of deltas) on the boundary of the set searched


class Method(Protocol):
    """A way to train. `step` owns zero_grad, every backward and every step of the optimiser."""

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        ...


def train_on(
    model: nn.Module,
    batch: Batch,
    point: Tensor,
    optimizer: Optimizer,
    passes: float,
    loss_transform: Callable[[Tensor], Tensor] = lambda loss: loss,
    **more: float,
) -> Log:
    """Take one step of the optimiser along the gradient at `point`, the pass that every method ends with."""
    optimizer.zero_grad()
    logits = model(point)
    loss = backward(loss_transform(cross_entropy_sum(logits, batch.y)), point, batch.size)
    optimizer.step()
    return log(loss, logits.detach(), batch.y, passes + len(point), **more)


def log(loss: Tensor, logits: Tensor, y: Tensor, passes: float, **more: float) -> Log:
    """The log of a step from its summed loss and its logits."""
    predicted = logits.argmax(1)
    return Log(
        loss=float(loss) / len(y),
        accuracy=float((predicted == y).sum()) / len(y),
        samples=len(y),
        passes=passes,
        predicted=torch.bincount(predicted, minlength=logits.shape[1]),
        **more,
    )


@dataclass(kw_only=True)
class AdversarialMethod(AdversarialSettings):
    """What methods that train against a ball share: the ball, its ramp, random starts, interval bounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Ball(self.eps, self.norm, self.bounds)  # checks them

    def ball(self, batch: Batch) -> tuple[Feasible, float]:
        """The deltas allowed at the time of the batch, and their radius."""
        eps = self.eps * min(1.0, batch.time / self.ramp) if self.ramp else self.eps
        return Ball(eps, self.norm, self.bounds).around(batch.x), eps

    def bounded(self, model: nn.Module, batch: Batch, ball: Feasible, share: float) -> Callable[[Tensor], Tensor]:
        """Mixes a share of the loss at the interval bounds of the ball into a loss; of a ball that grows, less."""
        if not share:
            return lambda loss: loss
        now = share * min(1.0, batch.time / self.ramp) if self.ramp else share

        def transform(loss: Tensor) -> Tensor:
            lead = worst_case_margins(model, batch.x + ball.low, batch.x + ball.high, batch.y)
            return (1 - now) * loss + now * cross_entropy_sum(lead, batch.y)

        return transform

    def start(self, batch: Batch, feasible: Feasible, radius: float | Tensor, centre: Tensor | None = None) -> Tensor:
        """A random point of the set near `centre` (or zero); the parts of a batch share one draw of its noise."""
        if len(batch.x) == batch.size:
            return feasible.noisy(centre, radius, batch.draw("start"))
        shape = (batch.size, *batch.x.shape[1:])
        drawn = uniform_noise(self.norm, shape, 1.0, batch.draw("start"), batch.x.dtype)[batch.part]
        delta = drawn.to(batch.x.device) * radius
        return feasible.project_(delta if centre is None else delta.add_(centre))
