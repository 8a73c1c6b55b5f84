"""Adversarial weight perturbation (Wu et al., 2020), for any method."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor, nn

from sihg.errors import InputError, NotFiniteError
from sihg.robust.gradients import check_finite, frozen_statistics, unwrap
from sihg.robust.waits import refuse_if

Objective = Callable[[nn.Module], tuple[Tensor, Tensor]]  # of a model: a summed loss, and the logits to log
TINY = 1e-20  # as in the authors' code


@contextmanager
def perturbed_weights(model: nn.Module, objective: Objective, x: Tensor, gamma: float) -> Iterator[None]:
    r"""Move the weights, within the block, along the gradient of the objective, by gamma times their norm.

    $$w_l + \gamma \|w_l\| \frac{\nabla_{w_l} L}{\|\nabla_{w_l} L\|}$$

    for each tensor w_l of two or more dimensions; biases and normalisation layers stay. The authors' code takes the
    gradient in a copy of the model, so that its statistics of batch normalisation are not kept; nor are they here. It
    restores the weights after the step of its optimiser, so that weight decay sees the perturbed ones; here it sees the
    usual ones. A lane, and a process of DDP, perturbs the weights by its own gradient.

    Args:
        model: The model; within DistributedDataParallel, its module.
        objective: Maps the model to a summed loss, at the adversarial points.
        x: The samples of the objective; an error names a row that is NaN or infinite.
        gamma: The size of the perturbation, relative to the weights.
    Raises:
        InputError: If the weights are sharded over processes ("awp-sharded").
        NotFiniteError: If the objective or its gradient is NaN or infinite.
    """
    model = unwrap(model)
    weights = [weight for weight in model.parameters() if weight.requires_grad and weight.dim() > 1]
    if any(hasattr(weight, "device_mesh") for weight in weights):
        raise InputError("awp-sharded")
    if not weights:
        yield
        return
    with frozen_statistics(model):
        loss = check_finite(objective(model)[0], x)
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    moves = [(w, g, g.norm()) for w, g in zip(weights, gradients, strict=True) if g is not None]
    _check_finite_gradients([length.to(loss.device) for *_, length in moves])
    kept = [weight.detach().clone() for weight in weights]
    try:
        with torch.no_grad():
            for weight, gradient, length in moves:
                weight.add_(gradient.mul_(gamma * weight.norm() / (length + TINY)))
        torch.clear_autocast_cache()  # within an autocast it has the weights before, in 16 bits
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)
        torch.clear_autocast_cache()


def _check_finite_gradients(lengths: list[Tensor]) -> None:
    """Raise NotFiniteError if one of these norms is NaN or infinite, before it reaches weights or statistics."""

    def refuse() -> NoReturn:
        raise NotFiniteError("awp-not-finite")

    if lengths:
        refuse_if(~torch.isfinite(torch.stack(lengths)).all(), refuse)
