"""Compare PGD-50-10 (ten restarts of 50 steps) with torchattacks, rai-toolbox, foolbox and ART on MNIST test images.

`pgd_peers.py` sets the peers up. Each gets all samples as one batch, and its best batch size of 64, 256 and 1000,
found by short runs. Every repetition uses new random starts, the only reason why accuracies differ. The mean of ours
may exceed a peer's by two standard errors of such a difference, estimated from our repetitions.

Passes are counted outside of the attacks: rows that go through the model, with or without a backward pass. The passes
that are needed are counted by a plain search that drops no samples. From the same starts it takes all steps of a
restart and notes the iterate at which each sample is first misclassified. A restart that the sample survives needs T
+ 1 passes: one at the start and one after each step. A restart that breaks it at iterate k (0 is the start) needs k +
1, and later restarts need none.

On the natural model nearly all samples break in the first steps; on the robust model few do.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import mnist_models
from benchmarks.pgd_peers import (
    BEST_BATCHES,
    PEERS,
    SEED,
    START_SEEDS,
    Case,
    find_best_batch_size,
    make_warm_attack,
    ratios_to_ours,
    versions,
)
from benchmarks.separate_processes import SeparateProcesses
from benchmarks.timing import (
    MIN_REPETITIONS,
    Measurement,
    Ratio,
    Report,
    Row,
    Timings,
    Value,
    time_interleaved,
    time_once,
)
from sihg.core.draw import generator
from sihg.robust.attacks.attacked_rows import ROWS_PER_DRAW
from sihg.robust.threat import uniform_noise

N, T, R = 2000, 50, 10
MIN_RATIO = {"natural": 10.0, "robust": 1.6}  # of the fastest peer's time to ours, all samples as one batch
MIN_RATIO_BEST_BATCHES = {"natural": 10.0, "robust": 1.0}  # and in its best batch size
MAX_PASSES_RATIO = 1.02  # of our passes to those needed
CLOSE = 1.25  # peers slower than this many times the fastest get one repetition, which is enough
ROWS = 256  # batch size of the plain search


def run(repetitions: int, out: Path | None) -> Report:
    """Time all attacks on both models."""
    x, y = mnist_models.load_images(N)
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    held = []
    for kind, min_ratio in MIN_RATIO.items():
        case = Case(f"{kind} model", mnist_models.load_model(kind, out), x, y, mnist_models.EPS, T, R)
        with SeparateProcesses() as processes:
            sizes = {name: processes(name, find_best_batch_size, name, case) for name in PEERS}
            calls: dict[str, Callable[[], Measurement]] = {
                name: partial(processes, name, time_and_count, name, case) for name in ("ours", *PEERS)
            }
            for name, size in sizes.items():
                calls[f"{name}{BEST_BATCHES}{size}"] = partial(processes, name, time_and_count, name, case, size)
            timings = repeat(calls, repetitions)
        left = {
            name: [100 * (1 - float(broken.double().mean())) for broken, _ in times.values]
            for name, times in timings.items()
        }
        passes = {name: int(times.values[0][1]) for name, times in timings.items()}  # starts as in `needed`
        needed = count_needed_passes(case)
        tables[case.name] = [
            row(name, times, timings["ours"], left[name], passes[name], needed) for name, times in timings.items()
        ]
        whole, best = ratios_to_ours(timings)
        first, first_at_best = min(whole.values()), min(best.values())
        measured[f"{case.name}, the fastest peer over ours"] = first
        measured[f"{case.name}, the fastest peer in its best batches over ours"] = first_at_best
        measured[f"{case.name}, our passes over those needed"] = passes["ours"] / needed
        measured[f"{case.name}, passes needed per sample"] = needed / N
        held += [first.median >= min_ratio, first_at_best.median >= MIN_RATIO_BEST_BATCHES[kind]]
        held += [
            passes["ours"] <= MAX_PASSES_RATIO * needed,
            *(is_not_above(left["ours"], accuracies_of(name, left)) for name in PEERS),
        ]
    return Report(
        f"PGD-{T}-{R} on {N} MNIST images: as one batch, the fastest of four peers takes at least "
        f"{MIN_RATIO['natural']:g} times our time on a natural model and {MIN_RATIO['robust']:g} times on a robust "
        f"one; in its best batch size at least {MIN_RATIO_BEST_BATCHES['natural']:g} and "
        f"{MIN_RATIO_BEST_BATCHES['robust']:g} times; our passes are at most {MAX_PASSES_RATIO} times those needed; "
        "no peer leaves a lower accuracy than other random starts explain",
        all(held),
        {**measured, "eps": mnist_models.EPS, "step": "2.5 eps / T", "seed": SEED, **versions()},
        tables,
    )


def accuracies_of(peer: str, left: dict[str, list[float]]) -> list[float]:
    """Return all accuracies that a peer leaves; in evaluation mode the batch size does not change them."""
    return [value for name, values in left.items() if name.split(BEST_BATCHES)[0] == peer for value in values]


def is_not_above(ours: list[float], theirs: list[float]) -> bool:
    """Return whether our mean is at most theirs plus two standard errors, estimated from the spread of ours."""
    spread = stdev(ours) if len(ours) > 1 else 0.0
    return mean(ours) <= mean(theirs) + 2 * spread * math.sqrt(1 / len(ours) + 1 / len(theirs))


def row(name: str, times: Timings, ours: Timings, left: list[float], passes: int, needed: int) -> Row:
    """Return a row of the table."""
    wall, cpu = times.over(ours.first(len(times.wall)))
    return {
        "attack": name,
        "s": times.milliseconds(1) / 1e3,
        "over ours": wall,
        "CPU over ours": cpu,
        "passes per sample": passes / N,
        "over those needed": passes / needed,
        "accuracy left, %": Ratio(mean(left), min(left), max(left)),
        "repetitions": len(times.wall),
    }


def repeat(calls: dict[str, Callable[[], Measurement]], repetitions: int) -> dict[str, Timings]:
    """Run all once; repeat ours and the peers close to the fastest, up to MIN_REPETITIONS times in all."""
    first = time_interleaved(calls, 1, warmed=True)
    close = {"ours": calls["ours"]}
    for among in (list(PEERS), [name for name in calls if BEST_BATCHES in name]):
        shortest = min(first[name].wall[0] for name in among)
        close |= {name: calls[name] for name in among if first[name].wall[0] <= CLOSE * shortest}
    more = time_interleaved(close, min(repetitions, MIN_REPETITIONS) - 1, warmed=True)
    return {name: times.extended(more[name]) if name in more else times for name, times in first.items()}


def time_and_count(name: str, case: Case, size: int | None = None) -> Measurement:
    """Run and time an attack; its value is what it broke and how many rows it sent through the model.

    Rows are counted at the first convolution, since ART calls the layers, not the model.
    """
    call = make_warm_attack(name, replace(case, seed=next(START_SEEDS)), size)
    row_counts: list[int] = []
    layer = next(module for module in case.model.modules() if isinstance(module, nn.Conv2d))
    layer.register_forward_pre_hook(lambda _, inputs: row_counts.append(len(inputs[0])))  # on a copy
    return time_once(lambda: (call(), sum(row_counts)))


def count_needed_passes(case: Case) -> int:
    """Count the passes needed to find what the plain search finds (see above)."""
    passes = 0
    for numbers in torch.arange(len(case.x)).split(ROWS):
        left = numbers
        for restart in range(case.restarts):
            first = first_broken(case, left, restart)
            passes += int((first + 1).clamp(max=case.steps + 1).sum())
            left = left[first > case.steps]
    return passes


def first_broken(case: Case, numbers: Tensor, restart: int) -> Tensor:
    """Return the iterate at which each sample is first misclassified in one restart; T + 1 if never."""
    x, y = case.x[numbers], case.y[numbers]
    low, high = (x - case.eps).clamp(min=0), (x + case.eps).clamp(max=1)
    first = torch.full_like(y, case.steps + 1)
    point = torch.clamp(x + start_noise(case, restart)[numbers], low, high)
    for k in range(case.steps + 1):
        point.requires_grad_()
        logits = case.model(point)
        (g,) = torch.autograd.grad(cross_entropy(logits, y, reduction="sum"), point)
        first = torch.where(logits.argmax(1) != y, first.clamp(max=k), first)
        point = torch.clamp(point.detach() + case.step_size * g.sign(), low, high)
    return first


def start_noise(case: Case, restart: int) -> Tensor:
    """Return the random start of our attack for each sample."""
    shape = (ROWS_PER_DRAW, *case.x.shape[1:])
    blocks = range(-(-len(case.x) // ROWS_PER_DRAW))
    draws = (generator(SEED, "attack start", restart, block) for block in blocks)
    return torch.cat([uniform_noise("linf", shape, case.eps, draw, case.x.dtype) for draw in draws])[: len(case.x)]
