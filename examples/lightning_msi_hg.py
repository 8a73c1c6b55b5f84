"""MSI-HG with Lightning: `python examples/lightning_msi_hg.py` (pip install 'sihg[lightning]').

The memory and the previous gradient are in Lightning's own checkpoints, so that `ckpt_path` continues exactly.
"""

import sys
import tempfile
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import sihg
from sihg.integrations.lightning import AdversarialModule
from sihg.robust import data, models

EPS, BATCH = 0.2, 100


def train(folder: Path, epochs: int, checkpoint: Path | None = None) -> AdversarialModule:
    """Train on the bundled digits for so many epochs in all, from a checkpoint if there is one."""
    samples, _ = data.load("digits")
    memory = sihg.PerturbationMemory(len(samples), samples.shape, EPS)
    method = sihg.MSIHG(eps=EPS, tau=EPS / 2, steps=2, memory=memory)
    model = models.build("small-cnn", samples.shape, 10, seed=0)
    module = AdversarialModule(model, method, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    numbered = TensorDataset(samples.floats(), samples.y, torch.arange(len(samples)))  # the memory needs the numbers
    loader = DataLoader(numbered, batch_sampler=sihg.ShardedBatchSampler(len(samples), BATCH))
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, save_last=True)],
        logger=False,
        use_distributed_sampler=False,  # the sampler belongs to the memory
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=True)
    return module


def main(epochs: int = 6) -> tuple[AdversarialModule, AdversarialModule]:
    """Train, once in one go and once interrupted; print the accuracy, and whether both are the same."""
    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder, "whole"), epochs)
        train(Path(folder, "half"), epochs // 2)
        resumed = train(Path(folder, "half"), epochs, Path(folder, "half", "last.ckpt"))
    _, test = data.load("digits")
    accuracy = float((whole.model.eval()(test.floats()).argmax(1) == test.y).float().mean())
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    same = all(torch.equal(a, b) for a, b in pairs)
    print(f"accuracy: {accuracy:.1%}, resumed with the same bits: {'yes' if same else 'no'}")
    return whole, resumed


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
