"""Estimate the seconds of a run from a few measured steps; nothing is written to disk."""

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from sihg.core.threads import use_threads
from sihg.robust.attacks import Attack
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.attacks.input_checks import check_plans
from sihg.robust.attacks.registry import plan_attacks
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data import sources
from sihg.robust.data.samples import Samples, stratified_subset
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings
from sihg.robust.training.events import StepDone
from sihg.robust.training.preflight import PreparedTraining, prepare
from sihg.robust.training.trainer import Trainer
from sihg.robust.training.weights import load

MEASURED_STEPS = 5  # of training, after one that warms up
MAX_SECONDS = 4.0  # after which one measured step is enough
FIRST_ROWS = 32  # samples in the first measurement of an attack
MIN_SECONDS = 0.2  # of an attack, for a reliable measurement
ATTACK_STEPS = 5  # of a measured attack
STEP_COUNTS = ("steps", "queries", "draws")  # the setting of an attack that its time is proportional to
TINY_RADIUS = 1e-6  # times eps: no sample breaks in so small a ball

Costs = dict[str, float]  # seconds per phase: training, then each attack


def estimate_costs(
    settings: Settings,
    attacks: Sequence[str],
    samples: int | None = None,
    *,
    data_dir: Path | None = None,
    threads: int = 1,
) -> Costs:
    """Estimate the seconds of training and of each attack; an attack's are an upper limit, as if no sample broke.

    Mistakes in the settings, the data or the attacks raise InputError.
    """
    with use_threads(threads):
        return _measure(settings, attacks, samples, data_dir)


def _measure(settings: Settings, attacks: Sequence[str], samples: int | None, data_dir: Path | None) -> Costs:
    prepared = prepare(replace(settings, memory_files=False), data_dir=data_dir)
    check_plans(prepared.model, prepared.train, plan_attacks(attacks, prepared.ball, source=load))
    test = stratified_subset(sources.open_data(settings.data, data_dir)[1], samples, 0).settled()
    training = settings.epochs * prepared.steps * _seconds_per_step(prepared)
    if prepared.held_out is not None:
        looks = math.ceil(settings.epochs / settings.evaluate_every)
        watched = _seconds_per_attack(prepared, ("natural", settings.evaluate_with), prepared.held_out)
        training += looks * sum(watched.values())
    return {"training": training, **_seconds_per_attack(prepared, attacks, test)}


def _seconds_per_step(prepared: PreparedTraining) -> float:
    seconds: list[float] = []
    trainer = Trainer(prepared)
    with closing(trainer.events()) as events:
        before = time.perf_counter()
        for event in events:
            now = time.perf_counter()
            if isinstance(event, StepDone):  # other events come after evaluations and checkpoints
                seconds.append(now - before)
                if len(seconds) > MEASURED_STEPS or sum(seconds) > MAX_SECONDS:
                    break
            before = now
        else:
            if trainer.progress.epoch < prepared.settings.epochs:
                raise KeyboardInterrupt
    return median(seconds[1:] or seconds)


def _seconds_per_attack(prepared: PreparedTraining, attacks: Sequence[str], samples: Samples) -> Costs:
    """Return the seconds of each attack on these samples, measured on some of them in a ball in which none breaks."""
    ball = prepared.ball
    tiny = Ball(TINY_RADIUS * ball.eps, ball.norm, ball.bounds)
    found: Costs = {}
    for name, plan in plan_attacks(attacks, tiny, source=load).items():
        for part, attack in plan.items():
            short, factor = _shorten(attack)
            seconds = factor * len(samples) * _seconds_per_sample(prepared, short, samples)
            found[name if len(plan) == 1 else f"{name}: {part}"] = seconds
    return found


def _seconds_per_sample(prepared: PreparedTraining, attack: Attack, samples: Samples) -> float:
    """Measure an attack on more and more samples, until that takes long enough; return the seconds per sample."""
    most = min(len(samples), rows_per_chunk(samples.shape))
    rows = min(FIRST_ROWS, most)
    while True:
        some = samples.take(slice(rows))
        with torch.no_grad():
            held = prepared.model.eval()(some.floats().to(prepared.device)).argmax(1).cpu()
        begin = time.perf_counter()
        run_attacks(prepared.model, replace(some, y=held), {"attack": {"attack": attack}})
        seconds = time.perf_counter() - begin
        if seconds > MIN_SECONDS or rows == most:
            return seconds / rows
        rows = min(4 * rows, most)


def _shorten(attack: Attack) -> tuple[Attack, float]:
    """Return the attack with a few steps, and how many times longer the whole attack takes."""
    for name in (name for name in STEP_COUNTS if hasattr(attack, name)):
        many, restarts = getattr(attack, name), getattr(attack, "restarts", 1)
        few = {name: min(ATTACK_STEPS, many), **({"restarts": 1} if restarts > 1 else {})}
        return replace(attack, **few), many * restarts / few[name]
    return attack, 1.0
