"""Checks of what a model and an attack return: logits, gradients and points."""

from typing import NoReturn

import torch
from torch import Tensor

from sihg.errors import InputError, NotFiniteError
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.threat import Ball
from sihg.robust.waits import refuse_if

SLACK = 1e-5  # of eps: what rounding may add to a distance


def check_logits(logits: Tensor, rows: Rows, *, labels: bool = True) -> Tensor:
    """Return the logits; raise InputError unless they are finite floats (n, classes) with one for every label.

    Args:
        logits: What the model returned.
        rows: The rows that it got.
        labels: Whether to look at the labels.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        what = logits.dtype if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise InputError("logits-type", what=what)
    values, y = logits.detach(), rows.y
    if values.dim() != 2 or len(values) != len(y):
        raise InputError("logits-shape", shape=tuple(values.shape), count=len(y))
    refuse_if(~torch.isfinite(values).all(), _refuse_logits)
    if labels and int(y.max()) >= values.shape[1]:
        row = int((y >= values.shape[1]).nonzero()[0])
        raise InputError("label-beyond-outputs", row=int(rows.number[row]), y=int(y[row]), shape=values.shape[1])
    if labels and rows.target is not None and int(rows.target.max()) >= values.shape[1]:
        row = int(rows.target.argmax())
        most = values.shape[1] - 1
        raise InputError("targets-range", row=int(rows.number[row]), target=int(rows.target[row]), most=most)
    return logits


def _refuse_logits() -> NoReturn:
    raise NotFiniteError("logits-not-finite")


def refuse_gradient(rows: Rows, bad: Tensor) -> NoReturn:
    """Raise the error for rows whose gradient is not finite."""
    raise NotFiniteError("input-gradient-not-finite", row=int(rows.number[int(bad.nonzero()[0])]))


def check_points(name: str, ball: Ball, x: Tensor, x_adv: Tensor, numbers: Tensor) -> None:
    """Raise InputError for points of an attack that are not finite, or outside the ball or the bounds."""
    if not bool(torch.isfinite(x_adv).all()):
        raise InputError("points-not-finite", row=int(numbers[_first_row(~torch.isfinite(x_adv))]), name=name)
    far = ball.lengths(x_adv - x)
    over = far - ball.eps * (1 + SLACK) - 8 * torch.finfo(x.dtype).eps * ball.lengths(x)
    if len(x) and float(over.max()) > 0:
        row = int(over.argmax())
        raise InputError("points-outside-ball", row=int(numbers[row]), name=name, far=float(far[row]), eps=ball.eps)
    if not torch.equal(ball.clip(x_adv), x_adv):
        row = int(numbers[_first_row(ball.clip(x_adv) != x_adv)])
        raise InputError("points-outside-bounds", row=row, name=name)


def _first_row(mask: Tensor) -> int:
    """Return the first row in which the mask is true anywhere."""
    return int(mask.flatten(1).any(1).nonzero()[0])
