"""Train small models on two processes, with DDP and FSDP2, and on one process that computes the batches of both."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import Batch
from sihg.robust.data.sharded_sampler import ShardedBatchSampler
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import ATTA, DAT, FGSMPGI, IBP, MART, MSIHG, NFGSM, PGDAT, TRADES, FreeAT
from sihg.robust.methods.base import Method
from sihg.robust.methods.memory_method import MemoryMethod
from tests.refused import refused

HAS_FSDP2 = hasattr(torch.cpu.Stream, "record_event")  # FSDP2 of torch 2.6 needs it, and works on GPUs only
WORLD, N, SHAPE, CLASSES, EPS, EPOCHS, BATCH = 2, 30, (1, 4, 4), 3, 0.2, 3, 8
METHODS: dict[str, Callable[[], Method]] = {
    "msi-hg": lambda: MSIHG(eps=EPS, tau=0.1, steps=2, noise=0),
    "msi-hg, interval": lambda: MSIHG(eps=EPS, tau=0.1, steps=2, noise=0, interval=0.5),
    "pgd": lambda: PGDAT(eps=EPS, steps=2),
    "pgd, awp": lambda: PGDAT(eps=EPS, steps=2, awp_gamma=0.1, label_smoothing=0.2),
    "n-fgsm": lambda: NFGSM(eps=EPS, k=1.0),
    "mart": lambda: MART(eps=EPS, steps=2),
    "atta": lambda: ATTA(eps=EPS),
    "fgsm-pgi": lambda: FGSMPGI(eps=EPS),
    "dat": lambda: DAT(eps=EPS, steps=2, control_epochs=2),
    "trades": lambda: TRADES(eps=EPS, steps=2),
    "ibp": lambda: IBP(eps=EPS),
    "free": lambda: FreeAT(eps=EPS, replays=2),
}


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.rand(N, *SHAPE, generator=draw, dtype=torch.float64), torch.randint(CLASSES, (N,), generator=draw)


def build(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, CLASSES)).double()


def optimize(model: nn.Module) -> HybridGradient:
    return HybridGradient(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def make_method(name: str, rank: int, world_size: int = WORLD) -> Method:
    method = METHODS[name]()
    if isinstance(method, MemoryMethod):
        shape = method.row_shape(SHAPE)
        method.memory = PerturbationMemory(N, shape, EPS, dtype="fp32", rank=rank, world_size=world_size)
    return method


def loop(rank: int, world_size: int = WORLD, *, sized: bool = True) -> Iterator[Batch]:
    """Yield the batches of a process; unless `sized`, without the size of the global batch."""
    x, y = data()
    sampler = ShardedBatchSampler(N, BATCH, rank, world_size, seed=3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (own, size) in enumerate(zip(sampler, sampler.sizes, strict=True)):
            index = torch.tensor(own)
            step = epoch * len(sampler) + number
            yield Batch(x[index], y[index], index, epoch, step, size=size if sized else 0)


class Collect:
    """An optimiser that lets gradients add up."""

    def zero_grad(self) -> None:
        pass

    def step(self) -> None:
        pass


def one_process(name: str, *, norm: bool = False, of_means: bool = False) -> dict[str, Tensor]:
    """Train on one process: each step adds the gradients of the batches of both, or takes the mean of their means."""
    model, methods = build(norm=norm), [make_method(name, rank) for rank in range(WORLD)]
    optimizer = optimize(model)
    for parts in zip(*(loop(rank) for rank in range(WORLD)), strict=True):
        optimizer.zero_grad()
        for method, batch in zip(methods, parts, strict=True):
            size = WORLD * len(batch.x) if of_means else batch.size
            method.step(model, replace(batch, size=size), Collect())
        optimizer.step()
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def whole_batches(name: str) -> dict[str, Tensor]:
    """Train on one process that knows nothing of others."""
    model, method = build(), make_method(name, 0, 1)
    optimizer = optimize(model)
    for batch in loop(0, 1):
        method.step(model, batch, optimizer)
    return model.state_dict()


# ---- on each of two processes


def with_ddp(name: str, rank: int, *, norm: bool = False, sized: bool = True) -> dict[str, Tensor]:
    model = DistributedDataParallel(build(norm=norm))
    method, optimizer = make_method(name, rank), optimize(model)
    for batch in loop(rank, sized=sized):
        method.step(model, batch, optimizer)
    return {key: value.detach().clone() for key, value in model.module.state_dict().items()}


def with_fsdp(name: str, rank: int, *, parts: bool) -> dict[str, Tensor]:
    """Shard the whole model or, with `parts`, also its first layer by itself."""
    model = build()
    mesh = init_device_mesh("cpu", (WORLD,))
    if parts:
        fully_shard(model[0], mesh=mesh)  # type: ignore[index]
    fully_shard(model, mesh=mesh)
    method, optimizer = make_method(name, rank), optimize(model)
    with refused("awp-sharded"):
        PGDAT(eps=EPS, awp_gamma=0.1).step(model, next(loop(rank)), optimizer)
    for number, batch in enumerate(loop(rank)):
        method.step(model, batch, optimizer)
        if number == 2:  # a state of sharded gradients can be loaded
            optimizer.load_state_dict(optimizer.state_dict())
    full: Any = {key: value.full_tensor() for key, value in model.state_dict().items()}
    return {key: value.detach().clone() for key, value in full.items()}


def work(rank: int, folder: str) -> None:
    """Run every case on one of the processes; keep the weights."""
    torch.set_num_threads(1)
    place = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=WORLD, timeout=timedelta(minutes=2))
    sampler = ShardedBatchSampler(N, BATCH)
    assert (sampler.rank, sampler.world_size) == (rank, WORLD)
    inside = nn.Sequential(DistributedDataParallel(build()))
    with refused("ddp-inside", type="Sequential"):
        make_method("msi-hg", rank).step(inside, next(loop(rank)), optimize(inside))
    found = {f"ddp, {name}": with_ddp(name, rank) for name in METHODS}
    found["ddp, norm, msi-hg"] = with_ddp("msi-hg", rank, norm=True)
    found["ddp, norm, trades"] = with_ddp("trades", rank, norm=True)
    found["ddp, unsized, msi-hg"] = with_ddp("msi-hg", rank, sized=False)
    for name in ("msi-hg", "trades", "pgd") if HAS_FSDP2 else ():
        for parts in (False, True):
            found[f"fsdp, {parts}, {name}"] = with_fsdp(name, rank, parts=parts)
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
