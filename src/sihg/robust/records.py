"""Evaluations of what was trained: the model from a run or a file, the samples, and the record that is kept."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.robust import data as sources
from sihg.robust.ball import Ball
from sihg.robust.data.samples import Samples, held_out
from sihg.robust.evaluate import Outcome, Progress, check_model, checked_device, evaluate, parse_attack
from sihg.robust.weights import Weights, load_weights
from sihg.runs.environment import environment
from sihg.runs.files import write_text, write_whole
from sihg.runs.folder import RunFolder

Z95 = 1.959963984540054  # the normal distribution's 97.5 % point


@dataclass(frozen=True)
class Question:
    """What is asked of the weights: which attacks on which samples."""

    attacks: tuple[str, ...] = ("natural", "pgd-20")
    split: str = "test"
    samples: int | None = None
    seed: int = 0
    last_iterate: bool = False


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share."""
    share, z2 = hits / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def ask(
    weights: Weights,
    question: Question,
    *,
    data_dir: Path | None = None,
    progress: Callable[[str, int], Progress] = lambda _name, _total: lambda _done: None,
) -> tuple[dict[str, Any], list[Outcome], Samples]:
    """Evaluate: the record, the outcomes and the samples; `progress(attack, samples)` hears how many are done."""
    settings = weights.settings
    ball = Ball(settings.eps, settings.norm, settings.bounds)
    for name in question.attacks:
        parse_attack(name, ball)  # before the data is read
    checked_device(settings.device)
    samples = _samples(settings.data, question, data_dir or weights.data_dir)
    model = _model(weights, samples)
    outcomes = evaluate(
        model,
        samples,
        list(question.attacks),
        ball,
        seed=question.seed,
        last_iterate=question.last_iterate,
        progress=lambda name: progress(name, len(samples)),
    )
    about = {
        "weights": str(weights.source),
        "checkpoint": weights.label,
        "data": settings.data,
        "split": question.split,
        "samples": len(samples),
        "seed": question.seed,
        "eps": settings.eps,
        "norm": settings.norm,
        "bounds": None if settings.bounds is None else list(settings.bounds),
        "device": settings.device,
        "rule": "last iterate" if question.last_iterate else "any iterate",
    }
    return {**about, "attacks": [_row(one) for one in outcomes]}, outcomes, samples


def _samples(data: str, question: Question, data_dir: Path | None) -> Samples:
    if question.split not in ("test", "train"):
        raise UnknownNameError("split", question.split, ["test", "train"])
    train, test = sources.load(data, data_dir)
    samples = test if question.split == "test" else train
    if question.samples is None or question.samples == len(samples):
        return samples
    if not 0 < question.samples < len(samples):
        raise InputError(
            f"cannot take {question.samples} of the {len(samples)} {question.split} samples of {data}: "
            f"give 1 to {len(samples)}, or leave it out for all"
        )
    return held_out(samples, question.samples, seed=question.seed)[1]


def _model(weights: Weights, samples: Samples) -> nn.Module:
    shape = weights.shape or samples.shape
    if shape != samples.shape:
        raise InputError(
            f"{weights.source} was trained on samples of shape {shape}, {weights.settings.data} has {samples.shape}: "
            "give data of its size"
        )
    model = weights.build(shape, len(samples.classes))
    load_weights(model, weights.tensors, weights.source)
    model = model.to(weights.settings.device)
    check_model(model, samples)
    return model.eval()


def _row(outcome: Outcome) -> dict[str, Any]:
    n, broken = len(outcome.broken), int(outcome.broken.sum())
    low, high = wilson(n - broken, n)
    counts = {"samples": n, "broken": broken, "passes": outcome.passes, "passes_per_sample": outcome.passes / n}
    spread = {"accuracy": outcome.accuracy, "low": low, "high": high}
    return {"attack": outcome.attack, **spread, **counts, "seconds": outcome.seconds}


def write_record(folder: RunFolder, name: str, record: dict[str, Any], outcomes: list[Outcome], y: Tensor) -> Path:
    """Keep an evaluation: NAME.npz, for each sample its label and by which attack it is broken, then NAME.json."""
    arrays = {
        "label": y.numpy(),
        "attack": np.array([one.attack for one in outcomes]),
        "broken": torch.stack([one.broken for one in outcomes]).numpy(),
    }

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    write_whole(folder.evaluation / f"{name}.npz", write)
    text = json.dumps({**record, "environment": environment()}, indent=1, allow_nan=False)
    return write_text(folder.evaluation / f"{name}.json", text + "\n")
