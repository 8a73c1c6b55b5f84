"""MSI-HG in your own loop with FSDP2, which shards weights: `torchrun --nproc-per-node 2 examples/fsdp2.py`."""

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sihg
from sihg.robust import data, models

EPS, EPOCHS, BATCH = 0.2, 4, 100


def main() -> None:
    """Train on the bundled digits, then print how many perturbations were found again, and the accuracy."""
    distributed.init_process_group("gloo")  # on GPUs: nccl
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    train, test = data.load("digits")
    model = models.build("small-cnn", train.shape, 10, seed=0)
    model = model.to(memory_format=torch.contiguous_format)  # FSDP2 does not take channels-last weights
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
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
    model.eval()
    with torch.no_grad():
        predicted = model(test.floats()).argmax(1)  # on all processes: each has a part of the weights
    if rank == 0:
        accuracy = float((predicted == test.y).float().mean())
        print(f"perturbations found: {reads[0] / reads[1]:.0%}, accuracy: {accuracy:.1%}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
