"""Batches of sample numbers for a loop on several processes, in which each process keeps to the samples it owns."""

from collections.abc import Iterator

import torch
from torch import Tensor, distributed
from torch.utils.data import Sampler

from sihg.core.processes import SHARDS
from sihg.errors import InputError
from sihg.robust.data.batches import check_batch_size, epoch_order, steps_per_epoch


class ShardedBatchSampler(Sampler[list[int]]):
    """Yield, per step, the samples of the global batch that this process owns: i = rank mod world_size.

    Every sample comes once per epoch, always to the same process: the one whose perturbation memory holds it. All
    processes have the same number of steps, and no batch is empty. The global batches are those of `sihg.batches`, on
    any number of processes, with one exception. A process without a sample in a batch, such as a last batch of a few
    samples, gets one that it owns from the nearest batch in which it has two.

    Args:
        n: The number of samples.
        batch_size: Samples per step, of all processes together.
        rank, world_size: The number of this process, and of how many (default: those of `torch.distributed` if it
            is initialised, else 0 and 1). world_size divides 64.
        seed: Decides the order.
    Raises:
        InputError: If the processes cannot share the samples, or one has fewer samples than there are steps.
    Example:
        >>> sampler = ShardedBatchSampler(200, batch_size=64, rank=1, world_size=2)
        >>> len(sampler), sampler.sizes, {i % 2 for index in sampler for i in index}
        (4, [64, 64, 64, 8], {1})
    """

    def __init__(
        self, n: int, batch_size: int, rank: int | None = None, world_size: int | None = None, seed: int = 0
    ) -> None:
        together = distributed.is_available() and distributed.is_initialized()
        self.rank = rank if rank is not None else distributed.get_rank() if together else 0
        self.world_size = world_size if world_size is not None else distributed.get_world_size() if together else 1
        if not (self.world_size >= 1 and SHARDS % self.world_size == 0 and 0 <= self.rank < self.world_size):
            raise InputError("process-rank", rank=self.rank, world_size=self.world_size, most=SHARDS)
        check_batch_size(batch_size, n)
        self.n, self.batch_size, self.seed, self.epoch = n, batch_size, seed, 0
        if n // self.world_size < len(self):
            raise InputError("sampler-few-samples", n=n, world_size=self.world_size, steps=len(self))

    def __repr__(self) -> str:
        return (
            f"ShardedBatchSampler({self.n} in batches of {self.batch_size}, process {self.rank} of {self.world_size})"
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order with the seed."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of steps per epoch, the same for all processes."""
        return steps_per_epoch(self.n, self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(self.n, self.seed, self.epoch)
        own = order[order % self.world_size == self.rank]
        for index in own.split(self._counts(order)[:, self.rank].tolist()):
            yield index.tolist()

    @property
    def sizes(self) -> list[int]:
        """Return the samples per step of this epoch, of all processes together: `size` of a `Batch`."""
        sizes: list[int] = self._counts(epoch_order(self.n, self.seed, self.epoch)).sum(1).tolist()
        return sizes

    def _counts(self, order: Tensor) -> Tensor:
        """Return how many samples of each step each process owns, (steps, world_size), none of them 0."""
        steps = torch.arange(self.n) // self.batch_size
        cells = steps * self.world_size + order % self.world_size
        counts = torch.bincount(cells, minlength=len(self) * self.world_size).view(len(self), self.world_size)
        for step, rank in (counts == 0).nonzero().tolist():
            rich = (counts[:, rank] > 1).nonzero().flatten()
            counts[rich[(rich - step).abs().argmin()], rank] -= 1
            counts[step, rank] += 1
        return counts
