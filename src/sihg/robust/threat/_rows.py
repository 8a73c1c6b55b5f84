"""Arithmetic by row of a batch, which the sets of perturbations share."""

import math
from typing import Any

import torch
from torch import Tensor


def take_rows(value: Any, index: Tensor) -> Any:
    """Index tensors by row; return scalars unchanged."""
    return value.index_select(0, index) if isinstance(value, Tensor) and value.dim() else value


def add_step(delta: Tensor, direction: Tensor, step: float | Tensor) -> Tensor:
    """Add step * direction to `delta`, in place."""
    return delta.addcmul_(direction, step) if isinstance(step, Tensor) else delta.add_(direction, alpha=step)


def vector_norms(vectors: Tensor, order: float) -> Tensor:
    """Return the norms of vectors, which lie in the last dimension.

    Example:
        >>> vector_norms(torch.tensor([[3.0, -4.0]]), 2), vector_norms(torch.tensor([[3.0, -4.0]]), math.inf)
        (tensor([5.]), tensor([4.]))
    """
    if order == math.inf:
        return vectors.abs().amax(-1)  # for this order, torch's norm takes many times longer on a CPU
    norms: Tensor = torch.linalg.vector_norm(vectors, ord=order, dim=-1)
    return norms


def row_norms(rows: Tensor, order: float = 2) -> Tensor:
    """Return the norm of each row, in a shape that broadcasts with the rows."""
    return vector_norms(rows.flatten(1), order).view(-1, *(1,) * (rows.dim() - 1))
