"""The order of an epoch: a function of (seed, epoch), the same for any number of processes."""

import torch
from torch import Tensor

from sihg.core.draw import generator

SHARDS = 64


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """Return a permutation of n samples, sorted by key.

    Shard v holds the samples i with i = v mod 64. The j-th sample of its permutation has the key (j + u_v) / len_v,
    where u_v is uniform.
    """
    keys, samples = [], []
    for v in range(min(SHARDS, n)):
        draw = generator(seed, "order", epoch, v)
        shard = torch.arange(v, n, SHARDS)
        samples.append(shard[torch.randperm(len(shard), generator=draw)])
        u = torch.rand((), generator=draw, dtype=torch.float64)
        keys.append((torch.arange(len(shard), dtype=torch.float64) + u) / len(shard))
    if not samples:
        return torch.empty(0, dtype=torch.int64)
    return torch.cat(samples)[torch.cat(keys).argsort(stable=True)]
