"""PGD-50-10 beside torchattacks, rai-toolbox, foolbox and ART: MNIST test images, ten runs of 50 steps.

`peers.py` has everybody's way. Each peer gets the samples as one batch, as `attack_speed.py` gives them, and in batches
of 64, 256 or 1000, whichever suit it best by short runs. Every repetition begins at new starts, by which alone the
accuracies that are left differ: ours, the mean of its repetitions, may be above a peer's by two standard errors of such
a difference, as our own repetitions tell them.

Passes are counted outside of the attacks: the rows that go through the model, with or without a pass back. What
survivors need is counted by a plain search that knows nothing of dropping: from the same starts it takes all steps of a
run, and notes at which iterate each sample is first misclassified. A run that the sample survives needs T + 1 looks, at
the start, after each step; one that breaks it at iterate k (0 is the start) needs k + 1, and later runs need none.

On the natural model nearly everything breaks in the first steps, on the robust one little does.
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

from benchmarks import mnist
from benchmarks.apart import Apart
from benchmarks.peers import BEST, PEERS, SEED, STARTS, Case, fastest, ratios, versions, warmed
from benchmarks.timing import FEWEST, Once, Ratio, Report, Row, Timed, Value, interleaved, once
from sihg.core.draw import generator
from sihg.robust.attacks.search import ROWS_PER_DRAW
from sihg.robust.threat import uniform_noise

N, T, R = 2000, 50, 10
LEAST = {"natural": 10.0, "robust": 1.6}  # times of ours, of the fastest peer with all samples as one batch
LEAST_AT_BEST = {"natural": 10.0, "robust": 1.0}  # and in its best batches
MOST = 1.02  # our passes over those that survivors need
CLOSE = 1.25  # times of the fastest peer: slower ones have one repetition, which is enough to tell
ROWS = 256  # that the plain search looks at together


def run(repetitions: int, out: Path | None) -> Report:
    """Time everybody on both models."""
    x, y = mnist.images(N)
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    held = []
    for kind, least in LEAST.items():
        case = Case(f"{kind} model", mnist.model(kind, out), x, y, mnist.EPS, T, R)
        with Apart() as apart:
            sizes = {name: apart(name, fastest, name, case) for name in PEERS}
            calls: dict[str, Callable[[], Once]] = {
                name: partial(apart, name, counted, name, case) for name in ("ours", *PEERS)
            }
            for name, size in sizes.items():
                calls[f"{name}{BEST}{size}"] = partial(apart, name, counted, name, case, size)
            timed = repeated(calls, repetitions)
        left = {
            name: [100 * (1 - float(broken.double().mean())) for broken, _ in t.values] for name, t in timed.items()
        }
        looks = {name: int(times.values[0][1]) for name, times in timed.items()}  # of ours, from the case's own starts
        need = needed(case)
        tables[case.name] = [
            row(name, times, timed["ours"], left[name], looks[name], need) for name, times in timed.items()
        ]
        whole, best = ratios(timed)
        first, first_at_best = min(whole.values()), min(best.values())
        measured[f"{case.name}, the fastest peer over ours"] = first
        measured[f"{case.name}, the fastest peer in its best batches over ours"] = first_at_best
        measured[f"{case.name}, our passes over those needed"] = looks["ours"] / need
        measured[f"{case.name}, passes needed a sample"] = need / N
        held += [first.median >= least, first_at_best.median >= LEAST_AT_BEST[kind]]
        held += [looks["ours"] <= MOST * need, *(no_more(left["ours"], of(name, left)) for name in PEERS)]
    return Report(
        f"PGD-{T}-{R} on {N} MNIST images as one batch: the fastest of four peers takes at least {LEAST['natural']:g} "
        f"times our time on a natural model and {LEAST['robust']:g} times on a robust one, in its best batches "
        f"{LEAST_AT_BEST['natural']:g} times and our time; our passes are at most {MOST} times what survivors need, "
        "and no peer leaves less accuracy than other starts explain",
        all(held),
        {**measured, "eps": mnist.EPS, "step": "2.5 eps / T", "seed": SEED, **versions()},
        tables,
    )


def of(peer: str, left: dict[str, list[float]]) -> list[float]:
    """What a peer leaves, as one batch and in others: the same to a model in evaluation mode."""
    return [one for name, some in left.items() if name.split(BEST)[0] == peer for one in some]


def no_more(ours: list[float], theirs: list[float]) -> bool:
    """Whether our mean is at most theirs, up to two standard errors of the difference by the spread of ours."""
    spread = stdev(ours) if len(ours) > 1 else 0.0
    return mean(ours) <= mean(theirs) + 2 * spread * math.sqrt(1 / len(ours) + 1 / len(theirs))


def row(name: str, times: Timed, ours: Timed, left: list[float], looks: int, need: int) -> Row:
    """A line of the table."""
    wall, cpu = times.over(ours.first(len(times.wall)))
    return {
        "attack": name,
        "s": times.milliseconds(1) / 1e3,
        "over ours": wall,
        "CPU over ours": cpu,
        "passes a sample": looks / N,
        "over those needed": looks / need,
        "accuracy left, %": Ratio(mean(left), min(left), max(left)),
        "repetitions": len(times.wall),
    }


def repeated(calls: dict[str, Callable[[], Once]], repetitions: int) -> dict[str, Timed]:
    """One repetition of all, and more, FEWEST at most, of ours and the peers that come close to the fastest."""
    first = interleaved(calls, 1, warmed=True)
    close = {"ours": calls["ours"]}
    for among in (list(PEERS), [name for name in calls if BEST in name]):
        quick = min(first[name].wall[0] for name in among)
        close |= {name: calls[name] for name in among if first[name].wall[0] <= CLOSE * quick}
    more = interleaved(close, min(repetitions, FEWEST) - 1, warmed=True)
    return {name: times.and_then(more[name]) if name in more else times for name, times in first.items()}


def counted(name: str, case: Case, size: int | None = None) -> Once:
    """Run and time an attack: what it broke, and the rows that it sent through the model.

    They are counted at its first layer: ART calls layers, not the model.
    """
    call = warmed(name, replace(case, seed=next(STARTS)), size)
    seen: list[int] = []
    layer = next(module for module in case.model.modules() if isinstance(module, nn.Conv2d))
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))  # stays: the model is a copy
    return once(lambda: (call(), sum(seen)))


def needed(case: Case) -> int:
    """The looks that it takes to find what a plain search finds at any iterate: see above."""
    looks = 0
    for numbers in torch.arange(len(case.x)).split(ROWS):
        left = numbers
        for run in range(case.runs):
            first = first_broken(case, left, run)
            looks += int((first + 1).clamp(max=case.steps + 1).sum())
            left = left[first > case.steps]
    return looks


def first_broken(case: Case, numbers: Tensor, run: int) -> Tensor:
    """The iterate of a run at which each of these samples is first misclassified, T + 1 for none."""
    x, y = case.x[numbers], case.y[numbers]
    low, high = (x - case.eps).clamp(min=0), (x + case.eps).clamp(max=1)
    first = torch.full_like(y, case.steps + 1)
    point = torch.clamp(x + start(case, run)[numbers], low, high)
    for k in range(case.steps + 1):
        point.requires_grad_()
        logits = case.model(point)
        (g,) = torch.autograd.grad(cross_entropy(logits, y, reduction="sum"), point)
        first = torch.where(logits.argmax(1) != y, first.clamp(max=k), first)
        point = torch.clamp(point.detach() + case.step * g.sign(), low, high)
    return first


def start(case: Case, run: int) -> Tensor:
    """Where our attack starts from each sample."""
    shape = (ROWS_PER_DRAW, *case.x.shape[1:])
    blocks = range(-(-len(case.x) // ROWS_PER_DRAW))
    draws = (generator(SEED, "attack start", run, block) for block in blocks)
    return torch.cat([uniform_noise("linf", shape, case.eps, draw, case.x.dtype) for draw in draws])[: len(case.x)]
