"""An epoch of PGD adversarial training beside its bare passes, and beside ART's trainer.

The bare loop makes the same forward and backward passes and optimiser steps: no noise, projection, checks or logs.
ART trains with `AdversarialTrainerMadryPGD`, given the same model, steps and batch. Its attack has a batch of its own,
32, which the trainer has no argument for: the claim is about ART as it is shipped. The row in which that attack is told
to take a whole batch is for information. All work in one process, so ART too has the memory that ours asks the C
library to keep, which its users would not have (`apart.py`).
"""

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from benchmarks.timing import Report, Timed, interleaved
from sihg.core.draw import generator
from sihg.robust.data.samples import Samples
from sihg.robust.models import build
from sihg.robust.training.config import Settings
from sihg.robust.training.preflight import preflight
from sihg.robust.training.trainer import Trainer

art_classification: Any = import_module("art.estimators.classification")  # has no types
art_trainer: Any = import_module("art.defences.trainer")

SEED = 0
SAMPLES, SHAPE, BATCH, T, EPS, LR = 450, (1, 28, 28), 150, 10, 0.3, 1e-3
MOST, LEAST = 1.10, 2.0  # of our time over the bare passes', and of ART's over ours
SECONDS = 25.0


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time an epoch of each, all training the same model in turn."""
    model, samples = build("small-cnn", SHAPE, 10, seed=SEED), images()
    timed = interleaved(
        {
            "ours": ours(model, samples),
            "bare passes": bare(model, samples),
            "ART": art(model, samples),
            f"ART, attack batch {BATCH}": art(model, samples, BATCH),
        },
        repetitions,
        SECONDS,
    )
    over_bare = timed["ours"].over(timed["bare passes"])[0]
    over_ours = timed["ART"].over(timed["ours"])[0]
    return Report(
        f"a PGD AT epoch takes at most {MOST:.2f} of its bare passes, one of ART as shipped at least {LEAST:g} of ours",
        over_bare.median <= MOST and over_ours.median >= LEAST,
        {
            "measured, ours over bare passes": over_bare,
            "measured, ART over ours": over_ours,
            "model": f"small-cnn, {SAMPLES} samples of {SHAPE}, batch {BATCH}, T = {T}",
            "repetitions": len(timed["ours"].wall),
            "seed": SEED,
            "adversarial-robustness-toolbox": version("adversarial-robustness-toolbox"),
        },
        {
            "an epoch": [
                {
                    "training": name,
                    "epoch, ms": times.milliseconds(1),
                    "samples/s": rate(times),
                    "over bare passes": times.over(timed["bare passes"])[0],
                    "of CPU time": times.over(timed["bare passes"])[1],
                    "over ours": times.over(timed["ours"])[0],
                    "CPU over ours": times.over(timed["ours"])[1],
                }
                for name, times in timed.items()
            ]
        },
    )


def rate(times: Timed) -> float:
    """Samples trained on in a second."""
    return 1e3 * SAMPLES / times.milliseconds(1)


def images() -> Samples:
    """Noise with labels: what a pass costs does not depend on the picture."""
    draw = generator(SEED, "training speed")
    x = torch.randint(256, (SAMPLES, *SHAPE), generator=draw, dtype=torch.uint8)
    return Samples(x, torch.randint(10, (SAMPLES,), generator=draw), tuple("0123456789"), "noise")


def ours(model: nn.Module, samples: Samples) -> Callable[[], object]:
    """An epoch by the trainer, set-up, order and logs included, without a run folder."""
    settings = Settings().with_values(
        {"eps": EPS, "epochs": 1, "batch_size": BATCH, "method": "pgd", "method.steps": T, "optimizer.lr": LR}
    )
    return lambda: Trainer(preflight(model, samples, settings)).run()


def bare(model: nn.Module, samples: Samples) -> Callable[[], object]:
    """The passes alone, on floats that are ready."""
    x, y = samples.floats(), samples.y
    optimizer = SGD(model.parameters(), lr=LR, momentum=0.9)

    def go() -> None:
        model.train()
        for rows in torch.arange(len(x)).split(BATCH):
            point, target = x[rows], y[rows]
            point.requires_grad_()
            for _ in range(T):
                torch.autograd.grad(cross_entropy(model(point), target), point)
            optimizer.zero_grad()
            cross_entropy(model(point.detach()), target).backward()
            optimizer.step()

    return go


def art(model: nn.Module, samples: Samples, attack_batch: int | None = None) -> Callable[[], object]:
    """An epoch by ART's trainer, as shipped or with another batch of its attack."""
    x, y = samples.floats().numpy(), samples.y.numpy()
    classifier = art_classification.PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=SGD(model.parameters(), lr=LR, momentum=0.9),
        input_shape=SHAPE,
        nb_classes=10,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    trainer = art_trainer.AdversarialTrainerMadryPGD(
        classifier, nb_epochs=1, batch_size=BATCH, eps=EPS, eps_step=2.5 * EPS / T, max_iter=T, num_random_init=1
    )
    if attack_batch:
        trainer.attack.set_params(batch_size=attack_batch)

    def go() -> None:
        with redirect_stderr(io.StringIO()):  # its progress bars
            trainer.fit(x, y)

    return go
