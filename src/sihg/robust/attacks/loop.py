"""The loop of one attack: chunks of a batch, one search each."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.search import ROWS_PER_DRAW, Rows, Search, Verdict
from sihg.robust.gradients import evaluation_mode, inner_mode

if TYPE_CHECKING:
    from sihg.robust.attacks.base import Attack

MAX_VALUES, MAX_ROWS = 1024 * 784, 1024  # values of x, and rows, in a chunk: measured, see benchmarks/attack_speed.py


def attack_batch(
    attack: "Attack", model: nn.Module, x: Tensor, y: Tensor, seed: int = 0, *, numbers: Tensor | None = None
) -> Verdict:
    """Attack every row of x; `numbers` are those of its rows in a larger set, which decide the draws."""
    check_module(model)
    numbers = torch.arange(len(x)) if numbers is None else numbers
    check_batch(x, y, numbers)
    x, y, numbers = x.detach(), y.long(), numbers.to(x.device)
    size, found = rows_per_chunk(x.shape[1:]), []
    with inner_mode(model, "running") if attack.input_gradients_only else evaluation_mode(model):
        for done in range(0, max(len(x), 1), size):
            part = slice(done, done + size)
            place = torch.arange(len(x[part]), device=x.device)
            rows = Rows(x[part], y[part], attack.ball.around(x[part]), numbers[part], place)
            found.append(Search(model, rows))
            if len(rows):
                attack.search(found[-1], seed)
    return Verdict(
        attack.ball.clip(torch.cat([search.x_adv for search in found])),
        torch.cat([search.broken for search in found]),
        torch.cat([search.prediction for search in found]),
        torch.cat([search.margin for search in found]),
        sum(search.passes for search in found),
        sum(search.forwards for search in found),
        max(search.classes for search in found),
    )


def rows_per_chunk(shape: Sequence[int]) -> int:
    """Return how many samples of this shape to attack at once, a multiple of ROWS_PER_DRAW."""
    return max(ROWS_PER_DRAW, min(MAX_ROWS, MAX_VALUES // max(1, math.prod(shape)) // ROWS_PER_DRAW * ROWS_PER_DRAW))


def check_module(model: object) -> None:
    """Raise InputError unless the model is a torch.nn.Module, which has a mode, a state and a device."""
    if not isinstance(model, nn.Module):
        raise InputError("not-a-module", type=type(model).__name__)


def check_batch(x: Tensor, y: Tensor, numbers: Tensor) -> None:
    """Raise InputError unless x is finite floats (n, ...) and y is n labels; rows are named by their numbers."""
    if x.dim() < 2 or not math.prod(x.shape[1:]):
        raise InputError("batch-shape", shape=tuple(x.shape))
    if not x.is_floating_point():
        raise InputError("batch-type", dtype=x.dtype)
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError("labels", shape=tuple(y.shape), dtype=y.dtype, count=len(x))
    if numbers.shape != x.shape[:1]:
        raise InputError("row-numbers", shape=tuple(numbers.shape), count=len(x))
    y = y.long()
    if bool((y < 0).any()):
        row = int((y < 0).nonzero()[0])
        raise InputError("label-range", row=int(numbers[row]), y=int(y[row]))
    if not bool(torch.isfinite(x).all()):
        row = int(numbers[int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])])
        raise InputError("samples-not-finite", row=row)
