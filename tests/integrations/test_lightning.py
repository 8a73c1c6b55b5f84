"""The Lightning module: steps as in a hand-written loop, exact resumption, checkpoints of tensors only."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sihg
from sihg.user_code import load_callable
from tests.refused import refused

pytest.importorskip("lightning", reason="the extra sihg[lightning] is not installed (make test-extras)")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "lightning_msi_hg.py"
N, BATCH, EPS = 30, 8, 0.1
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),  # few workers, no validation loop
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.rand(N, 1, 4, 4, generator=draw), torch.randint(3, (N,), generator=draw)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def method() -> sihg.MSIHG:
    return sihg.MSIHG(eps=EPS, tau=EPS / 2, steps=2, memory=sihg.PerturbationMemory(N, (1, 4, 4), EPS))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(folder: Path, epochs: int, checkpoint: Path | None = None) -> Any:
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from sihg.integrations.lightning import AdversarialModule

    module = AdversarialModule(net(), method(), sgd)
    numbered = TensorDataset(*samples(), torch.arange(N))
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, save_last=True)],
        logger=False,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(numbered, batch_sampler=sihg.ShardedBatchSampler(N, BATCH))
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=True)
    return module


def assert_same(ours: Any, model: nn.Module, memory: Any, epoch: int) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], value), name
    index = torch.arange(N)
    assert torch.equal(ours.method.memory.read(index, epoch), memory.read(index, epoch))


def test_it_takes_the_steps_of_a_loop_of_ones_own(tmp_path: Path) -> None:
    module = train(tmp_path, 3)
    model, plain, (x, y) = net(), method(), samples()
    optimizer = sihg.HybridGradient(sgd(model.parameters()))
    sampler = sihg.ShardedBatchSampler(N, BATCH)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for number, own in enumerate(sampler):
            index, step = torch.tensor(own), epoch * len(sampler) + number
            batch = sihg.Batch(x[index], y[index], index, epoch, step, time=epoch + number / len(sampler))
            plain.step(model, batch, optimizer)
    assert_same(module, model, plain.memory, 3)


def test_a_resumed_training_gives_the_same_bits(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "half", 2)
    last = tmp_path / "half" / "last.ckpt"
    state = torch.load(last, weights_only=True)["sihg_method"]  # nothing but tensors
    assert {type(value) for value in state.values()} == {torch.Tensor}
    resumed = train(tmp_path / "half", 4, last)
    assert_same(resumed, whole.model, whole.method.memory, 4)


def test_without_the_memory_it_would_differ(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "half", 2)
    last = tmp_path / "half" / "last.ckpt"
    content = torch.load(last, weights_only=True)
    del content["sihg_method"]
    torch.save(content, last)
    resumed = train(tmp_path / "half", 4, last)
    assert not torch.equal(resumed.model[1].weight, whole.model[1].weight)


def test_batches_without_numbers_are_refused() -> None:
    from sihg.integrations.lightning import AdversarialModule

    with refused("lightning-batch", items=2):
        AdversarialModule(net(), method(), sgd).training_step(samples(), 0)


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    load_callable("example", f"{EXAMPLE}:main")(epochs=4)
    said = capsys.readouterr().out
    assert "resumed with the same bits: yes" in said
    assert float(said.partition("accuracy: ")[2].partition("%")[0]) > 70
