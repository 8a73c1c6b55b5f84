"""Rectifiers that leak, and an ascent that does not see through them.

At a large eps a network learns to close most of its first rectifiers on whatever an attack may do, and a closed ReLU
has no gradient: attacks by gradients go blind, and overstate what holds. A leak of a thousandth hardly changes the
outputs, but shows the way. It makes the adversary of the first epochs so strong that training may stay at one
prediction, hence `blinded`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from sihg.errors import InputError


def leaks(model: nn.Module) -> list[nn.LeakyReLU]:
    """The rectifiers of a model that leak."""
    return [module for module in model.modules() if type(module) is nn.LeakyReLU]


def check_leaks(model: nn.Module, blind: float) -> None:
    """Refuse blind epochs where there is nothing to see through."""
    if blind and not leaks(model):
        raise InputError(
            f"blind = {blind} is for models with nn.LeakyReLU, such as leaky-cnn, and {type(model).__name__} has none: "
            "leave it out"
        )


@contextmanager
def blinded(model: nn.Module, rows: Tensor) -> Iterator[None]:
    """Within, the gradients of these rows (a mask) take closed rectifiers for closed; outputs stay as they are."""
    changed = leaks(model) if bool(rows.any()) else []
    for module in changed:
        module.__dict__["forward"] = partial(_forward, module, rows)
    try:
        yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)


def _forward(module: nn.LeakyReLU, rows: Tensor, input: Tensor) -> Tensor:  # noqa: A002
    if len(input) != len(rows):
        raise InputError(f"a rectifier sees {len(input)} rows of a batch of {len(rows)}: leave blind out for it")
    slope = (~rows).to(input).mul_(module.negative_slope).view(-1, *(1,) * (input.dim() - 1))
    out: Tensor = _Blind.apply(input, slope, module.negative_slope)  # type: ignore[no-untyped-call]
    return out


class _Blind(torch.autograd.Function):
    """A leaky rectifier whose gradient has another slope for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor, leak: float) -> Tensor:
        ctx.save_for_backward(x, slope)
        return leaky_relu(x, leak)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, slope) = grads, ctx.saved_tensors
        return torch.where(x > 0, g, g * slope), None, None
