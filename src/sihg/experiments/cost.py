"""What a run will cost, from a few measured steps; nothing is left behind."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sihg.robust import data as sources
from sihg.robust.attacks import Attack
from sihg.robust.attacks.base import rows_at_once
from sihg.robust.attacks.preflight import check_plans
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.samples import Samples, stratified_subset
from sihg.robust.evaluation.plans import plan_attacks
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings
from sihg.robust.training.events import EpochDone, StepDone
from sihg.robust.training.fit import prepare
from sihg.robust.training.preflight import PreparedTraining
from sihg.robust.training.trainer import Trainer
from sihg.robust.training.weights import load

STEPS = 5  # measured, after one that warms up
ENOUGH = 4.0  # seconds after which one measured step will do
ROWS = 32  # samples attacked to measure, at first
LONG = 0.2  # seconds of an attack that can be measured
FEW = 5  # steps of an attack
COUNTS = ("steps", "queries", "draws")  # whichever an attack has
NOTHING = 1e-6  # of eps: a ball so small that nothing breaks

Costs = dict[str, float]  # seconds by phase: training, then each attack


def costs(settings: Settings, attacks: Sequence[str], samples: int | None, data_dir: Path | None) -> Costs:
    """The seconds of a run's training and of each attack on its test samples, these at most: as if all held.

    What is wrong with the settings, the data or the attacks shows here.
    """
    prepared = prepare(replace(settings, memory_files=False), data_dir=data_dir)
    check_plans(prepared.model, prepared.train, plan_attacks(attacks, prepared.ball, source=load))
    test = stratified_subset(sources.load(settings.data, data_dir)[1], samples, 0)
    training = settings.epochs * prepared.steps * _step(prepared)
    if prepared.held_out is not None:
        looks = math.ceil(settings.epochs / settings.evaluate_every)
        watched = _attacked(prepared, ("natural", settings.evaluate_with), len(prepared.held_out), prepared.held_out)
        training += looks * sum(watched.values())
    return {"training": training, **_attacked(prepared, attacks, len(test), test)}


def _step(prepared: PreparedTraining) -> float:
    """Measure the seconds of one step."""
    times = [time.perf_counter()]
    trainer = Trainer(prepared)
    with closing(trainer.events()) as events:
        for event in events:
            if isinstance(event, StepDone):
                times.append(time.perf_counter())
                if len(times) > STEPS + 1 or times[-1] - times[0] > ENOUGH:
                    break
            elif isinstance(event, EpochDone):
                times[-1] = time.perf_counter()  # without the evaluation
        else:
            if trainer.progress.epoch < prepared.settings.epochs:
                raise KeyboardInterrupt
    steps = [after - before for before, after in pairwise(times)]
    return median(steps[1:] or steps)


def _attacked(prepared: PreparedTraining, attacks: Sequence[str], n: int, samples: Samples) -> Costs:
    """The seconds of each attack on n samples that all hold, from some of them in a ball so small that they do."""
    ball = prepared.ball
    tiny = Ball(NOTHING * ball.eps, ball.norm, ball.bounds)
    found: Costs = {}
    for name, plan in plan_attacks(attacks, tiny, source=load).items():
        for part, attack in plan.items():
            short, factor = _shortened(attack)
            found[name if len(plan) == 1 else f"{name}: {part}"] = factor * n * _a_sample(prepared, short, samples)
    return found


def _a_sample(prepared: PreparedTraining, attack: Attack, samples: Samples) -> float:
    """The seconds of an attack on one of many samples: on more and more of them, until that takes long enough."""
    most = min(len(samples), rows_at_once(samples.shape))
    rows = min(ROWS, most)
    while True:
        some = samples.take(slice(rows))
        with torch.no_grad():
            held = prepared.model.eval()(some.floats().to(prepared.device)).argmax(1).cpu()
        begin = time.perf_counter()
        run_attacks(prepared.model, replace(some, y=held), {"attack": {"attack": attack}})
        seconds = time.perf_counter() - begin
        if seconds > LONG or rows == most:
            return seconds / rows
        rows = min(4 * rows, most)


def _shortened(attack: Attack) -> tuple[Attack, float]:
    """An attack of a few steps, and how many times as long the whole one is."""
    for name in (name for name in COUNTS if hasattr(attack, name)):
        many, restarts = getattr(attack, name), getattr(attack, "restarts", 1)
        few: Mapping[str, Any] = {name: min(FEW, many), **({"restarts": 1} if restarts > 1 else {})}
        return replace(attack, **few), many * restarts / few[name]
    return attack, 1.0
