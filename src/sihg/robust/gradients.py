"""What methods and attacks share: losses, logits, input gradients, ascent, the pass that trains, scoped modes."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.robust._fast_passes import keep_freed_memory, quick_input_gradients
from sihg.robust.precision import ascent_format, to_float32
from sihg.robust.threat import Feasible
from sihg.robust.waits import refuse_if

Loss = Callable[[Tensor, Tensor], Tensor]
Slope = Callable[[Tensor], Tensor]
DLR_CLASSES, TARGETED_DLR_CLASSES = 3, 4  # that the difference-of-logits ratio needs


def cross_entropy_per_row(logits: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of each row, for labels as in `cross_entropy_sum`."""
    return cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)


def cross_entropy_sum(logits: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the sum of the cross-entropies, in which the gradient of each row is that of its own loss.

    Labels are (1 - smoothing) times one-hot plus smoothing times uniform.
    """
    try:
        return cross_entropy(logits, y, reduction="sum", label_smoothing=smoothing)
    except IndexError:
        raise InputError(
            "labels-beyond-outputs", low=int(y.min()), high=int(y.max()), outputs=logits.shape[1]
        ) from None


def misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, whether the largest logit is not that of the label."""
    return logits.detach().argmax(1) != y


def margins(logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the logit of the label minus the largest other one."""
    others = logits.scatter(1, y[:, None], -math.inf)
    return logits.gather(1, y[:, None]).squeeze(1) - others.amax(1)


def breaks(logits: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Return, per row, whether the sample is broken: misclassified or, with a target, predicted as that class."""
    return misclassified(logits, y) if target is None else ~misclassified(logits, target)


def leads(logits: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
    """Return, per row, how far it is from broken: the margin or, with a target, the margin of the target reversed."""
    return margins(logits, y) if target is None else -margins(logits, target)


def ascent_loss(target: Tensor | None) -> Loss:
    """Return what an attack raises: the cross-entropy of the label, or minus that of the target."""
    return cross_entropy_per_row if target is None else partial(_likelihood, target)


def _likelihood(target: Tensor, logits: Tensor, _y: Tensor) -> Tensor:
    return -cross_entropy_per_row(logits, target)


def wrong_classes(logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the classes other than the label, (n, classes - 1), the likeliest first."""
    label_first = logits.scatter(1, y[:, None], math.inf)
    return label_first.argsort(dim=1, descending=True, stable=True)[:, 1:]


def logit_difference(target: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the logit of the target minus that of the label."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the difference-of-logits ratio; with fewer than three classes its numerator alone."""
    difference = -margins(logits, y)
    if logits.shape[1] < DLR_CLASSES:
        return difference
    first, _, third = torch.topk(logits, DLR_CLASSES, dim=1).values.unbind(1)
    return difference / (first - third + 1e-12)


def targeted_dlr(target: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the targeted difference-of-logits ratio; with fewer than four classes its numerator alone."""
    difference = logit_difference(target, logits, y)
    if logits.shape[1] < TARGETED_DLR_CLASSES:
        return difference
    first, _, third, fourth = torch.topk(logits, TARGETED_DLR_CLASSES, dim=1).values.unbind(1)
    return difference / (first - (third + fourth) / 2 + 1e-12)


def device_of(model: nn.Module) -> torch.device:
    """Return where the model computes."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def as_input(model: nn.Module, x: Tensor) -> Tensor:
    """Return x as the model's weights are, where both are float32 or float64; otherwise x itself."""
    floats = (torch.float32, torch.float64)
    found = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return x.to(next(iter(found))) if x.dtype in floats and len(found) == 1 and found <= set(floats) else x


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module in a DistributedDataParallel, whose passes do not wait for other processes; else the model.

    Raises:
        InputError: If the wrapper is inside another module ("ddp-inside"): its passes would end in a crash.
    """
    if isinstance(model, DistributedDataParallel):
        bare: nn.Module = model.module
        return bare
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise InputError("ddp-inside", type=type(model).__name__)
    return model


def averaging_processes(model: nn.Module) -> int:
    """Return over how many processes a backward pass averages gradients: those of DDP; for FSDP2 all; else 1."""
    if isinstance(model, DistributedDataParallel):
        return torch.distributed.get_world_size(model.process_group)
    fsdp = sys.modules.get("torch.distributed.fsdp")  # whoever has sharded a model has imported it
    sharded = fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())
    return torch.distributed.get_world_size() if sharded else 1


def compute_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs of the model in evaluation mode, without gradients."""
    with evaluation_mode(model), torch.no_grad():
        logits: Tensor = model(x)
    return logits


def is_missing_gradient(error: RuntimeError) -> bool:
    """Return whether torch says that the output of a model cannot be differentiated in its input."""
    ways = (
        "does not require grad",
        "not have been used in the graph",
        "Can't call numpy() on Tensor that requires grad",
    )
    return any(way in str(error) for way in ways)


def check_finite(loss: Tensor, point: Tensor) -> Tensor:
    """Return the loss; raise NotFiniteError if it is NaN or infinite, before it reaches the weights."""

    def refuse() -> NoReturn:
        rows = (~torch.isfinite(point.detach().flatten(1)).all(1)).nonzero().flatten().tolist()
        remedy = "lower the learning rate, or clip gradients"
        if rows:
            remedy = f"row {rows[0]} of the batch is NaN or infinite: clean the data"
        raise NotFiniteError("loss-not-finite", rows=tuple(rows), loss=float(loss.detach()), remedy=remedy)

    refuse_if(~torch.isfinite(loss.detach()), refuse)
    return loss


def input_gradient(model: nn.Module, point: Tensor, y: Tensor, loss: Loss = cross_entropy_sum) -> Tensor:
    """Return the gradient of the loss in the input, without computing that of the weights."""
    model, point = unwrap(model), point.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(to_float32(model(point)), y)
        return torch.autograd.grad(value, point)[0]


def try_input_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor | None:
    """Return the gradient of the summed loss in the input; None if the model cannot be differentiated."""
    point = x.detach().requires_grad_()
    try:
        with evaluation_mode(model), torch.enable_grad():
            return torch.autograd.grad(loss(model(point), y).sum(), point)[0]
    except RuntimeError as error:
        if not is_missing_gradient(error):
            raise
        return None


def slope(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy_sum) -> Slope:
    """Return the function that maps delta to the gradient of the loss at x + delta."""
    return lambda delta: input_gradient(model, x + delta, y, loss)


def ascend(slope: Slope, delta: Tensor, feasible: Feasible, step: float | Tensor, steps: int) -> Tensor:
    """Take `steps` steepest ascent steps of length `step`, each projected; changes `delta` in place."""
    for _ in range(steps):
        feasible.climb_(delta, slope(delta), step)
    return delta


def backward(loss: Tensor, point: Tensor, size: float) -> Tensor:
    """Add the gradient of loss / size to that of the weights, if the loss at `point` is finite; return the loss."""
    (check_finite(loss, point) / size).backward()
    return loss.detach()


@contextmanager
def inner_mode(model: nn.Module, statistics: str) -> Iterator[None]:
    """Prepare the model for an ascent: statistics of the batch (not kept) or running ones, no weight gradients.

    Passes within run in the format that `number_formats` chose for ascents.
    """
    if statistics not in STATISTICS:
        raise UnknownNameError("statistics", statistics, list(STATISTICS))
    keep_freed_memory()
    with STATISTICS[statistics](model), quick_input_gradients(model), ascent_format(device_of(model).type):
        yield


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch and instance normalisation use the statistics of the batch without keeping them."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    kept = [(m, m.running_mean, m.running_var) for m in norms if m.training]
    for module, *_ in kept:
        module.track_running_stats = False
        module.running_mean = module.running_var = None  # else instance normalisation updates them
    try:
        yield
    finally:
        for module, mean, var in kept:
            module.track_running_stats = True
            module.running_mean, module.running_var = mean, var


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, then each back into the mode it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


STATISTICS = {"batch": frozen_statistics, "running": evaluation_mode}
