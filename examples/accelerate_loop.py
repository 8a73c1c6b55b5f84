"""MSI-HG in your own loop with accelerate: `torchrun --nproc-per-node 2 examples/accelerate_loop.py`.

`accelerate launch` starts it too. The loader is not prepared: accelerate would deal its batches out again, and a
process would see samples whose perturbations another one holds.
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import sihg
from sihg.robust import data, models

EPS, EPOCHS, BATCH = 0.2, 4, 100


def main() -> None:
    """Train on the bundled digits, then print how many perturbations were found again, and the accuracy."""
    accelerator = Accelerator(cpu=True)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    train, test = data.load("digits")
    model = models.build("small-cnn", train.shape, 10, seed=0)
    optimizer = sihg.HybridGradient(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    model, optimizer = accelerator.prepare(model, optimizer)
    memory = sihg.PerturbationMemory(len(train), train.shape, EPS, rank=rank, world_size=world_size)
    method = sihg.MSIHG(eps=EPS, tau=EPS / 2, steps=2, memory=memory)
    sampler = sihg.ShardedBatchSampler(len(train), BATCH, rank, world_size)
    numbered = TensorDataset(train.floats(), train.y, torch.arange(len(train)))  # the memory needs the numbers
    loader = DataLoader(numbered, batch_sampler=sampler)
    reads = torch.zeros(2, device=accelerator.device)  # perturbations found, perturbations read
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, ((x, y, index), size) in enumerate(zip(loader, sampler.sizes, strict=True)):
            if epoch > 0:
                found = memory.read(index, epoch).flatten(1).any(1)
                reads += torch.tensor([int(found.sum()), len(found)])
            step = epoch * len(sampler) + number
            x, y = x.to(accelerator.device), y.to(accelerator.device)
            method.step(model, sihg.Batch(x, y, index, epoch, step, size=size), optimizer)
    reads = accelerator.reduce(reads)
    if accelerator.is_main_process:
        trained = accelerator.unwrap_model(model).eval()
        accuracy = float((trained(test.floats()).argmax(1) == test.y).float().mean())
        print(f"perturbations found: {reads[0] / reads[1]:.0%}, accuracy: {accuracy:.1%}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
