"""Trainers of small runs on digits, in a new folder or in the one of an earlier run."""

from pathlib import Path

import torch
from torch import nn

from sihg.robust import models
from sihg.robust.training.config import Settings
from sihg.robust.training.fit import new_folder
from sihg.robust.training.preflight import preflight, split_off
from sihg.robust.training.trainer import Trainer
from sihg.store.run_folder import RunFolder
from tests.robust.small import digits


def trainer(
    chosen: Settings,
    path: Path | None = None,
    *,
    again: bool = False,
    model: nn.Module | None = None,
) -> Trainer:
    """A trainer on digits; `again` opens the folder and starts from other weights, which a checkpoint must replace."""
    folder = None if path is None else RunFolder.open(path) if again else begin(path, chosen)
    train, held = split_off(digits(), chosen)
    if model is None:
        model = models.build(chosen.model, train.shape, 10, width=chosen.width, seed=chosen.seed + again)
    return Trainer(preflight(model, train, chosen, held), folder)


def begin(path: Path, chosen: Settings) -> RunFolder:
    """The folder of a new run."""
    return new_folder(path, chosen, threads=torch.get_num_threads())
