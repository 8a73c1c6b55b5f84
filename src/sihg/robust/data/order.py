"""The order of an epoch: a function of (seed, epoch), the same for any number of processes."""

import torch
from torch import Tensor

from sihg.core.draw import generator

SHARDS = 64


def order(n: int, seed: int, epoch: int) -> Tensor:
    """Every sample once. Shard v holds the samples i with i = v mod 64; the j-th of its permutation has the key
    (j + u_v) / len_v, u_v uniform, and samples come in the order of their keys."""
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
