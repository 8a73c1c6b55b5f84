"""Perturbations, and ways to look into a memory of them."""

from typing import Any

import torch
from torch import Tensor

from sihg.robust.memory import PerturbationMemory

EPS = 0.3
SHAPE = (2, 3)


def draws(seed: int, count: int, eps: float = EPS, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return (2 * torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed)) - 1) * eps


def index(*samples: int) -> Tensor:
    return torch.tensor(samples, dtype=torch.int64)


def everything(memory: PerturbationMemory, epoch: int) -> Tensor:
    return memory.read(torch.arange(memory.n), epoch)


def row(memory: PerturbationMemory, epoch: int, sample: int) -> Any:
    """The stored bytes of a sample, to be damaged."""
    memory.flush()
    place, shard = divmod(sample, memory._shards.count)
    return memory._shards.generations[epoch % 2][shard][place]
