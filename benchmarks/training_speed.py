"""Compare an epoch of PGD adversarial training with its bare passes and with ART's trainer.

The bare loop makes the same forward and backward passes and optimiser steps, without noise, projection, checks and
logs. ART trains with `AdversarialTrainerMadryPGD`, with the same model, steps and batch size. Its attack has another
batch size, 32, for which the trainer has no argument. The claim is about ART as shipped; a second row, for
information, sets this batch size too. All run in one process, so ART also profits from the freed memory that our code
tells the C library to keep. Its users would not have this (`separate_processes.py`).
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

from benchmarks.timing import Report, Timings, time_interleaved
from sihg.core.draw import generator
from sihg.robust.data.samples import Samples
from sihg.robust.models import build
from sihg.robust.training.config import Settings
from sihg.robust.training.preflight import preflight
from sihg.robust.training.trainer import Trainer

art_classification: Any = import_module("art.estimators.classification")  # untyped
art_trainer: Any = import_module("art.defences.trainer")

SEED = 0
SAMPLES, SHAPE, BATCH, T, EPS, LR = 450, (1, 28, 28), 150, 10, 0.3, 1e-3
MAX_OVER_BARE, MIN_ART_OVER_OURS = 1.10, 2.0
SECONDS = 25.0  # time limit


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time an epoch of each, in turn, on the same model."""
    model, samples = build("small-cnn", SHAPE, 10, seed=SEED), noise_images()
    timings = time_interleaved(
        {
            "ours": our_epoch(model, samples),
            "bare passes": bare_epoch(model, samples),
            "ART": art_epoch(model, samples),
            f"ART, attack batch {BATCH}": art_epoch(model, samples, BATCH),
        },
        repetitions,
        SECONDS,
    )
    over_bare = timings["ours"].over(timings["bare passes"])[0]
    over_ours = timings["ART"].over(timings["ours"])[0]
    return Report(
        f"a PGD AT epoch takes at most {MAX_OVER_BARE:.2f} times its bare passes, "
        f"an epoch of ART as shipped at least {MIN_ART_OVER_OURS:g} times ours",
        over_bare.median <= MAX_OVER_BARE and over_ours.median >= MIN_ART_OVER_OURS,
        {
            "measured, ours over bare passes": over_bare,
            "measured, ART over ours": over_ours,
            "model": f"small-cnn, {SAMPLES} samples of {SHAPE}, batch {BATCH}, T = {T}",
            "repetitions": len(timings["ours"].wall),
            "seed": SEED,
            "adversarial-robustness-toolbox": version("adversarial-robustness-toolbox"),
        },
        {
            "one epoch": [
                {
                    "training": name,
                    "epoch, ms": times.milliseconds(1),
                    "samples/s": samples_per_second(times),
                    "over bare passes": times.over(timings["bare passes"])[0],
                    "CPU over bare passes": times.over(timings["bare passes"])[1],
                    "over ours": times.over(timings["ours"])[0],
                    "CPU over ours": times.over(timings["ours"])[1],
                }
                for name, times in timings.items()
            ]
        },
    )


def samples_per_second(times: Timings) -> float:
    """Return how many samples are trained on per second."""
    return 1e3 * SAMPLES / times.milliseconds(1)


def noise_images() -> Samples:
    """Return noise with random labels: the cost of a pass does not depend on the image."""
    draw = generator(SEED, "training speed")
    x = torch.randint(256, (SAMPLES, *SHAPE), generator=draw, dtype=torch.uint8)
    return Samples(x, torch.randint(10, (SAMPLES,), generator=draw), tuple("0123456789"), "noise")


def our_epoch(model: nn.Module, samples: Samples) -> Callable[[], object]:
    """Return an epoch by our trainer, including set-up, order and logs, without a run folder."""
    settings = Settings().with_values(
        {"eps": EPS, "epochs": 1, "batch_size": BATCH, "method": "pgd", "method.steps": T, "optimizer.lr": LR}
    )
    return lambda: Trainer(preflight(model, samples, settings)).run()


def bare_epoch(model: nn.Module, samples: Samples) -> Callable[[], object]:
    """Return an epoch of the passes alone, on images that are floats already."""
    x, y = samples.floats(), samples.y
    optimizer = SGD(model.parameters(), lr=LR, momentum=0.9)

    def run_epoch() -> None:
        model.train()
        for rows in torch.arange(len(x)).split(BATCH):
            point, target = x[rows], y[rows]
            point.requires_grad_()
            for _ in range(T):
                torch.autograd.grad(cross_entropy(model(point), target), point)
            optimizer.zero_grad()
            cross_entropy(model(point.detach()), target).backward()
            optimizer.step()

    return run_epoch


def art_epoch(model: nn.Module, samples: Samples, attack_batch: int | None = None) -> Callable[[], object]:
    """Return an epoch by ART's trainer, as shipped or with another batch size of its attack."""
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

    def run_epoch() -> None:
        with redirect_stderr(io.StringIO()):  # hides its progress bars
            trainer.fit(x, y)

    return run_epoch
