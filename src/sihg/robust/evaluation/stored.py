"""Evaluations of what was trained: the model from a run or a file, the samples, and the record that is kept."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.robust import data as sources
from sihg.robust.attacks import Attack
from sihg.robust.attacks.registry import Plan, build_plan
from sihg.robust.attacks.runner import Outcome, Progress, run_attacks
from sihg.robust.data.samples import Samples, stratified_subset
from sihg.robust.evaluation.diagnostics import State, before, other_attack, whole
from sihg.robust.evaluation.evaluate import (
    Evaluation,
    check_model,
    check_plans,
    check_range,
    checked_device,
    examine,
    planned,
    wilson,
)
from sihg.robust.evaluation.gallery import gallery, has_pictures, is_better, strongest, write_gallery
from sihg.robust.evaluation.partial import FileLedger
from sihg.robust.threat import Ball
from sihg.robust.training.weights import Weights, load, load_weights
from sihg.store.environment import describe_environment
from sihg.store.files import write_arrays, write_text


@dataclass(frozen=True)
class Question:
    """What is asked of the weights: which attacks on which samples."""

    attacks: tuple[str, ...] = ("natural", "pgd-20")
    split: str = "test"
    samples: int | None = None
    seed: int = 0
    last_iterate: bool = False


@dataclass(frozen=True, eq=False)
class Asked:
    """Weights ready to be attacked: the model, the samples out of `total` ones, the ball, what a record says of it."""

    model: nn.Module
    samples: Samples
    index: Tensor  # of each sample among all of its split
    total: int
    ball: Ball
    about: dict[str, Any]
    question: Question
    weights: Weights

    @property
    def trained_with(self) -> str | None:
        """The method that the model was trained with, if known."""
        return self.weights.settings.method.name if self.weights.folder else None

    def source(self, run: str) -> nn.Module:
        """The model of another run, to transfer from."""
        model = load(run).to(self.weights.settings.device)
        check_model(model, self.samples)
        return model

    def answer(
        self, ledger: FileLedger | None = None, progress: Callable[[str, int], Progress] = lambda *_: lambda _done: None
    ) -> tuple[dict[str, Any], Evaluation]:
        """Attack and check: the record, and all that was found."""
        question = self.question
        plans = planned(question.attacks, self.ball, last_iterate=question.last_iterate, source=self.source)
        found = examine(
            self.model,
            self.samples,
            self.total,
            self.ball,
            plans,
            seed=question.seed,
            trained_with=self.trained_with,
            progress=progress,
            ledger=ledger,
        )
        checks = [asdict(one) for one in found.checks]
        return {**self.about, "attacks": found.rows(), "checks": checks, "checks_seconds": found.checks_seconds}, found

    def keep_gallery(self, path: Path, outcomes: list[Outcome]) -> None:
        """Write a sample of each class before and after the strongest attack, where the samples are images.

        One of the same weights after a stronger attack stays.
        """
        outcome = strongest(outcomes)
        if outcome is None or not has_pictures(self.samples):
            return
        names = ("sha256", "checkpoint", "data", "split", "eps", "norm", "bounds", "rule")
        about = {name: self.about[name] for name in names} | {"classes": list(self.samples.classes)}
        about |= {"attack": outcome.attack, "accuracy": outcome.accuracy}
        if not is_better(path, about):
            question = self.question
            plan = planned([outcome.attack], self.ball, last_iterate=question.last_iterate, source=self.source)
            arrays = gallery(self.model, self.samples, plan[outcome.attack], outcome, seed=question.seed)
            write_gallery(path, about, arrays)

    def curve(
        self,
        radii: list[float],
        ledger: FileLedger | None = None,
        progress: Callable[[str, int], Progress] = lambda *_: lambda _done: None,
    ) -> tuple[dict[str, Any], list[Outcome]]:
        """The accuracy at each radius: what a smaller ball breaks, a larger one does, so only the rest is attacked."""
        question, plans = self.question, dict[str, Plan]()
        for name in question.attacks:
            stages: dict[str, Attack] = {}
            for eps in radii:
                ball = Ball(eps, self.ball.norm, self.ball.bounds)
                parts = build_plan(
                    name if eps else "natural", ball, last_iterate=question.last_iterate, source=self.source
                )
                stages |= {f"{eps:.12g} {part}": attack for part, attack in parts.items()}
            plans[name] = stages
        largest = Ball(radii[-1], self.ball.norm, self.ball.bounds)
        check_plans(self.model, self.samples, plans)
        check_range(self.samples, largest)
        state = State(self.model)
        checks = [*before(self.model, self.samples, largest, question.seed), whole(len(self.samples), self.total)]
        outcomes = run_attacks(self.model, self.samples, plans, seed=question.seed, progress=progress, ledger=ledger)
        checks += [other_attack(plans, self.trained_with), state.check()]
        rows = [_curve(one, radii) for one in outcomes]
        return {**self.about, "eps": radii, "curves": rows, "checks": [asdict(one) for one in checks]}, outcomes


def ask(weights: Weights, question: Question, *, data_dir: Path | None = None) -> Asked:
    """Read the data and fill the model; what cannot be asked is refused."""
    settings = weights.settings
    ball = Ball(settings.eps, settings.norm, settings.bounds)
    planned(question.attacks, ball, source=lambda _run: nn.Identity())  # before the data is read
    checked_device(settings.device)
    every = _samples(settings.data, question, data_dir or weights.data_dir)
    index = stratified_subset(replace(every, x=torch.arange(len(every))), question.samples, question.seed).x
    samples = every if len(index) == len(every) else every.take(index)
    model = _model(weights, samples)
    about = {
        "weights": str(weights.source),
        "sha256": digest(weights),
        "checkpoint": weights.label,
        "data": settings.data,
        "split": question.split,
        "samples": len(samples),
        "of": len(every),
        "seed": question.seed,
        "eps": settings.eps,
        "norm": settings.norm,
        "bounds": None if settings.bounds is None else list(settings.bounds),
        "device": settings.device,
        "rule": "last iterate" if question.last_iterate else "any iterate",
    }
    return Asked(model, samples, index, len(every), ball, about, question, weights)


def digest(weights: Weights) -> str:
    """The SHA-256 of the tensors, in the order of their names."""
    found = hashlib.sha256()
    for name, value in sorted(weights.tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(_bytes(value))
    return found.hexdigest()


def contents(samples: Samples) -> str:
    """The SHA-256 of samples and labels."""
    return hashlib.sha256(_bytes(samples.x) + _bytes(samples.y)).hexdigest()


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _samples(data: str, question: Question, data_dir: Path | None) -> Samples:
    if question.split not in ("test", "train"):
        raise UnknownNameError("split", question.split, ["test", "train"])
    train, test = sources.load(data, data_dir)
    return test if question.split == "test" else train


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


def _curve(outcome: Outcome, radii: list[float]) -> dict[str, Any]:
    """The accuracy at each radius, and its interval: as the last attack with that radius left it."""
    last = {one.attack.partition(" ")[0]: one for one in outcome.stages or (outcome,)}
    rows = [last[f"{eps:.12g}"] for eps in radii]
    n = len(outcome.broken)
    spreads = [wilson(n - int(one.broken.sum()), n) for one in rows]
    return {
        "attack": outcome.attack,
        **({"proof": True, "remark": outcome.remark.rpartition(": ")[2]} if outcome.proof else {}),
        "accuracy": [one.accuracy for one in rows],
        "low": [low for low, _ in spreads],
        "high": [high for _, high in spreads],
        "passes": outcome.passes,
        "forwards": outcome.forwards,
        "seconds": outcome.seconds,
    }


def write_record(folder: Path, name: str, record: dict[str, Any], outcomes: list[Outcome], asked: Asked) -> Path:
    """Keep an evaluation: NAME.npz, of each sample its place in the data, label and how it fared, then NAME.json."""
    stages = [
        (one.attack if stage is one else f"{one.attack}: {stage.attack}", stage)
        for one in outcomes
        for stage in (*one.stages, one)
    ]
    arrays = {
        "index": asked.index.numpy(),
        "label": asked.samples.y.numpy(),
        "attack": np.array([name for name, _ in stages]),
        **{
            what: torch.stack([getattr(one, what) for _, one in stages]).numpy()
            for what in ("attacked", "broken", "prediction", "margin")
        },
    }
    write_arrays(folder / f"{name}.npz", arrays)
    text = json.dumps({**record, "environment": msgspec.to_builtins(describe_environment())}, indent=1, allow_nan=False)
    return write_text(folder / f"{name}.json", text + "\n")
