"""Checks of what a perturbation memory is asked for: the numbers of samples, the epoch, new perturbations."""

import numpy as np
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.memory._row_format import Index


def check_index(index: Tensor, n: int, rank: int, world_size: int) -> Index:
    """Return the numbers of samples; raise InputError unless they are among n and belong to this process."""
    where: Index = index.detach().cpu().numpy()
    if where.ndim != 1 or where.dtype != np.int64:
        raise InputError("memory-index-type", dtype=str(index.dtype), shape=tuple(index.shape))
    if len(where) and not 0 <= where.min() <= where.max() < n:
        raise InputError("memory-index-range", sample=int(where[(where < 0) | (where >= n)][0]), last=n - 1)
    foreign = where % world_size != rank
    if foreign.any():
        sample = int(where[foreign][0])
        owner = sample % world_size
        raise InputError("memory-foreign-sample", sample=sample, owner=owner, rank=rank, world_size=world_size)
    return where


def check_epoch(epoch: int) -> None:
    """Raise InputError unless a tag can hold the epoch."""
    if not 0 <= epoch < 2**32 - 1:
        raise InputError("memory-epoch", epoch=epoch)


def check_delta(where: Index, delta: Tensor, shape: tuple[int, ...]) -> None:
    """Raise InputError unless there is a perturbation of this shape for each sample, and each sample once."""
    if len(np.unique(where)) < len(where):
        raise InputError("memory-index-twice", sample=int(np.flatnonzero(np.bincount(where) > 1)[0]))
    if delta.shape != (len(where), *shape):
        raise InputError("memory-delta-shape", shape=tuple(delta.shape), wanted=(len(where), *shape))
