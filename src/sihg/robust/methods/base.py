"""What every method shares: the contract with the trainer, the ball and its ramp, the log of a step."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from sihg.robust.certify import worst_case_margins
from sihg.robust.data.batches import Batch
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import averaging_processes, backward, cross_entropy_sum, evaluation_mode, unwrap
from sihg.robust.methods.awp import Objective, perturbed_weights
from sihg.robust.methods.settings import AdversarialSettings
from sihg.robust.threat import Ball, Feasible, scale_to_ball, scale_to_l1_ball
from sihg.robust.waits import Late, LateField, late

INTERVAL_PASSES = 3  # of a loss at interval bounds: centres and radii, each with its weights
LossTransform = Callable[[Tensor], Tensor]


class Optimizer(Protocol):
    """The interface that a method needs from an optimiser; every torch optimiser has it.

    Args:
        *args: As the optimiser takes them.
    Example:
        >>> optimizer: Optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    """

    def zero_grad(self) -> Any:
        """Reset the gradients."""
        ...

    def step(self) -> Any:
        """Update the weights with the gradients."""
        ...


@dataclass(frozen=True)
class Log:
    """What a step did: means over the samples of its batch, before the weights changed.

    A device is waited for when a number is looked at; the trainer reads all of them once per step.

    Args:
        loss, accuracy: On the points that it trained on.
        samples: The size of the batch.
        passes: Forward-backward passes, times samples; a forward pass alone counts one half.
        predicted: How often each class was predicted.
        moved: The mean |new - old delta| / eps of the memory.
        saturated: The share of entries of delta (l2, l1: of deltas) on the boundary of the searched set.
        extra: One value for each of the method's `columns`.
    Example:
        >>> log(torch.tensor(1.5), torch.eye(2), torch.tensor([0, 1]), passes=2).accuracy
        1.0
    """

    loss: LateField[float] = LateField()  # noqa: RUF009
    accuracy: LateField[float] = LateField()  # noqa: RUF009
    samples: LateField[int] = LateField()  # noqa: RUF009
    passes: LateField[float] = LateField()  # noqa: RUF009
    predicted: LateField[Tensor] = LateField()  # noqa: RUF009
    moved: LateField[float | None] = LateField(None)  # noqa: RUF009
    saturated: LateField[float | None] = LateField(None)  # noqa: RUF009
    extra: Mapping[str, float] = field(default_factory=dict)


class Method:
    """A way to train. A method without state overrides only `step`.

    The trainer calls `check` before there is a run folder, `bind` once there is one, `load_state` if the run is
    resumed, then `step` for each batch; and `flush` and `state` for each checkpoint. A run in several lanes has a copy
    of the method for each lane, with its own state.

    Example:
        >>> Method().state(epoch=0)
        {}
    """

    columns: ClassVar[tuple[str, ...]] = ()  # of metrics.csv in addition to the usual ones: means of `Log.extra`
    memory_columns: ClassVar[tuple[str, ...]] = ()  # of memory.csv; without any, there is no such file
    state_file: ClassVar[str] = "method"  # the file of a checkpoint that holds `state`

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch: call zero_grad, every backward pass and every step of the optimiser."""
        raise NotImplementedError

    @property
    def optimizer_steps(self) -> int:
        """How many steps of the optimiser it takes per batch."""
        return 1

    def rounds(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Iterator[Log]:
        """Train on one batch, and yield after each of `optimizer_steps` steps of the optimiser.

        With several lanes, the weights change only between the yields, once all lanes have added their gradients.
        """
        yield self.step(model, batch, optimizer)

    def check(self, model: nn.Module, sample: Tensor, *, dtype: str = "int8") -> None:
        """Raise InputError for a model or a setting that it cannot train with.

        Args:
            model: The model to train.
            sample: A batch of one sample.
            dtype: The number format for a perturbation memory.
        """

    def bind(
        self,
        samples: Samples,
        *,
        dtype: str = "int8",
        folder: Path | None = None,
        resuming: bool = False,
        lane: int = 0,
        lanes: int = 1,
    ) -> None:
        """Make the state that it keeps per sample.

        Args:
            samples: The training set; `batch.index` counts its rows.
            dtype: The number format for a perturbation memory.
            folder: Where to map files; None for RAM.
            resuming: Whether `load_state` follows, so that files must be there already.
            lane, lanes: It gets the samples i with i mod `lanes` = `lane`.
        """

    def expect(self, index: Tensor, epoch: int) -> None:
        """Begin to read what it keeps in files of these samples: they are the next batch, in this epoch."""

    def state(self, epoch: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the tensors that a checkpoint made in this epoch has to keep."""
        return {}

    def load_state(self, state: Mapping[str, Tensor], epoch: int) -> None:
        """Continue in this epoch from the tensors that `state` returned."""

    def flush(self) -> None:
        """Write mapped files to the disk."""

    def memory_row(self, epoch: int) -> dict[str, float]:  # noqa: ARG002
        """Return the values of `memory_columns` at the end of an epoch."""
        return {}


def descend(
    model: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    objective: Objective,
    passes: float,
    *,
    weights: AbstractContextManager[None] | None = None,
    moved: float | Late[float] | None = None,
    saturated: float | Late[float] | None = None,
) -> Log:
    """Take one step of the optimiser along the gradient of an objective: the last lines of every method.

    Args:
        model, batch, optimizer: As `step` gets them.
        objective: Maps the model to a summed loss, and to the logits whose accuracy is logged.
        passes: All passes of the step, times samples.
        weights: Holds other weights while the gradient is computed; `step` gets the usual ones back.
        moved, saturated: As in `Log`.
    """
    optimizer.zero_grad()
    with weights or nullcontext():
        value, logits = objective(model)
        loss = backward(value, batch.x, loss_divisor(model, batch))
    done = log(loss, logits.detach(), batch.y, passes, moved=moved, saturated=saturated)
    optimizer.step()
    return done


def loss_divisor(model: nn.Module, batch: Batch) -> float:
    """Return what a summed loss is divided by, so that gradients are those of the mean over the global batch.

    DDP and FSDP2 average gradients over processes, where the global batch needs their sum. A batch that does not say
    the size of the global batch has its own: then gradients are the average of the processes' means.
    """
    return batch.size if batch.size == len(batch.x) else batch.size / averaging_processes(model)


def log(
    loss: Tensor,
    logits: Tensor,
    y: Tensor,
    passes: float,
    *,
    moved: float | Late[float] | None = None,
    saturated: float | Late[float] | None = None,
) -> Log:
    """Make the log of a step from its summed loss and its logits, best before the optimiser steps: it reads both."""
    predicted, n = logits.argmax(1), len(y)
    return Log(
        loss=late(lambda loss: loss / n, loss),
        accuracy=late(lambda hits: hits / n, (predicted == y).sum()),
        samples=n,
        passes=passes,
        predicted=_count_classes(predicted, logits.shape[1]),
        moved=moved,
        saturated=saturated,
    )


def _count_classes(predicted: Tensor, classes: int) -> Tensor | Late[Tensor]:
    if predicted.device.type == "cpu":
        return torch.bincount(predicted, minlength=classes)
    counts = (predicted[:, None] == torch.arange(classes, device=predicted.device)).sum(0)  # bincount would wait
    return late(torch.tensor, counts)


@dataclass(kw_only=True)
class AdversarialMethod(AdversarialSettings, Method):
    """Base of the methods that train against a ball around each sample.

    A method names it before its settings: `class PGDAT(AdversarialMethod, PGDSettings)`.

    Args:
        eps: The radius of the ball, such as "8/255".
        norm: "linf", "l2" or "l1".
        bounds: x + delta stays within them; None for no bounds.
        ramp: The epochs in which the radius grows linearly from 0 to eps.
        label_smoothing: The share of each label that the training loss spreads over all classes.
        awp_gamma, awp_warmup: The size of adversarial weight perturbations, and the epochs before they begin.
    Example:
        >>> AdversarialMethod(eps=0.1, ramp=3).norm
        'linf'
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        Ball(self.eps, self.norm, self.bounds)  # checks them

    def ball(self, batch: Batch) -> tuple[Feasible, float]:
        """Return the allowed deltas at the time of the batch, and their radius."""
        eps = self.radius(batch)
        return Ball(eps, self.norm, self.bounds).around(batch.x), eps

    def radius(self, batch: Batch) -> float:
        """Return the radius of the ball at the time of the batch."""
        return self.eps * min(1.0, batch.time / self.ramp) if self.ramp else self.eps

    def interval_loss(self, model: nn.Module, batch: Batch, ball: Feasible, share: float) -> LossTransform:
        """Return a function that mixes `share` of the loss at the interval bounds of the ball into a loss."""
        if not share:
            return lambda loss: loss
        now = share * min(1.0, batch.time / self.ramp) if self.ramp else share

        def mix(loss: Tensor) -> Tensor:
            margins = worst_case_margins(unwrap(model), batch.x + ball.low, batch.x + ball.high, batch.y)
            return (1 - now) * loss + now * cross_entropy_sum(margins, batch.y)

        return mix

    def start(self, batch: Batch, feasible: Feasible, radius: float | Tensor, centre: Tensor | None = None) -> Tensor:
        """Draw a point of the set near `centre` (default: zero): uniform noise from the ball of `radius`, projected."""
        if self.norm == "linf":
            delta = batch.uniform("start").mul_(2).sub_(1).mul_(radius)
        else:
            draw, scale = (batch.normal, scale_to_ball) if self.norm == "l2" else (batch.uniform, scale_to_l1_ball)
            delta = scale(draw("start"), batch.uniform("length", (1,)), radius)
        return feasible.project_(delta if centre is None else delta.add_(centre))

    def training_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the summed cross-entropy of the smoothed labels."""
        return cross_entropy_sum(logits, y, self.label_smoothing)

    def train_on(
        self,
        model: nn.Module,
        batch: Batch,
        point: Tensor,
        optimizer: Optimizer,
        passes: float,
        loss_transform: LossTransform = lambda loss: loss,
        *,
        cost: float = 1,
        moved: float | Late[float] | None = None,
        saturated: float | Late[float] | None = None,
    ) -> Log:
        """Take one step of the optimiser along the gradient at `point`: the last line of most methods.

        Args:
            model, batch, optimizer: As `step` gets them.
            point: The samples to train on.
            passes: Those of the ascent, times samples.
            loss_transform: Applied to the summed loss.
            cost: Passes per sample of the transformed loss.
            moved, saturated: As in `Log`.
        """

        def objective(model: nn.Module) -> tuple[Tensor, Tensor]:
            logits = model(point)
            return loss_transform(self.training_loss(logits, batch.y)), logits

        return self.descend(model, batch, optimizer, objective, passes, cost=cost, moved=moved, saturated=saturated)

    def descend(
        self,
        model: nn.Module,
        batch: Batch,
        optimizer: Optimizer,
        objective: Objective,
        passes: float,
        *,
        cost: float = 1,
        moved: float | Late[float] | None = None,
        saturated: float | Late[float] | None = None,
    ) -> Log:
        """Take one step of the optimiser along the gradient of an objective of `cost` passes per sample.

        With AWP, the gradient is that at the perturbed weights. The other arguments are those of the function
        `sihg.robust.methods.base.descend`.
        """
        passes += cost * self.passes_per_gradient(batch) * len(batch.x)
        weights = self.trained_weights(model, batch, objective)
        return descend(model, batch, optimizer, objective, passes, weights=weights, moved=moved, saturated=saturated)

    def trained_weights(self, model: nn.Module, batch: Batch, objective: Objective) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights at which its training gradient is computed."""
        if not self._perturbs_weights(batch):
            return nullcontext()
        return perturbed_weights(model, objective, batch.x, self.awp_gamma)

    def passes_per_gradient(self, batch: Batch) -> int:
        """Return how often the objective is differentiated per step of the optimiser: twice with AWP."""
        return 2 if self._perturbs_weights(batch) else 1

    def _perturbs_weights(self, batch: Batch) -> bool:
        return self.awp_gamma > 0 and batch.time >= self.awp_warmup


def check_certifiable(model: nn.Module, sample: Tensor) -> None:
    """Raise InputError unless every layer of the model has interval bounds."""
    with evaluation_mode(model), torch.no_grad():
        worst_case_margins(model, sample, sample, torch.zeros(len(sample), dtype=torch.long, device=sample.device))
