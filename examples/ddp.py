"""MSI-HG in your own loop with DistributedDataParallel: `torchrun --nproc-per-node 2 examples/ddp.py`."""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import sihg
from sihg.robust import data, models

EPS, EPOCHS, BATCH = 0.2, 4, 100


def main() -> None:
    """Train on the bundled digits, then print how many perturbations were found again, and the accuracy."""
    distributed.init_process_group("gloo")  # on GPUs: nccl, and model and batches go to the device of this process
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    train, test = data.load("digits")
    model = DistributedDataParallel(models.build("small-cnn", train.shape, 10, seed=0))
    memory = sihg.PerturbationMemory(len(train), train.shape, EPS, rank=rank, world_size=world_size)
    method = sihg.MSIHG(eps=EPS, tau=EPS / 2, steps=2, memory=memory)
    optimizer = sihg.HybridGradient(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    sampler = sihg.ShardedBatchSampler(len(train), BATCH)  # in place of DistributedSampler
    reads = torch.zeros(2)  # perturbations found, perturbations read
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (own, size) in enumerate(zip(sampler, sampler.sizes, strict=True)):
            index = torch.tensor(own)
            if epoch > 0:
                found = memory.read(index, epoch).flatten(1).any(1)
                reads += torch.tensor([int(found.sum()), len(found)])
            step = epoch * len(sampler) + number
            batch = sihg.Batch(train.floats(index), train.y[index], index, epoch, step, size=size)
            method.step(model, batch, optimizer)
    distributed.all_reduce(reads)
    if rank == 0:
        model.module.eval()
        accuracy = float((model.module(test.floats()).argmax(1) == test.y).float().mean())
        print(f"perturbations found: {reads[0] / reads[1]:.0%}, accuracy: {accuracy:.1%}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
