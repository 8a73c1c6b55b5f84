"""PGD-50-10 beside torchattacks, rai-toolbox, foolbox and ART: MNIST test images, ten runs of 50 steps.

`peers.py` has everybody's way. Each peer gets the batch of 64, 256 and 1000 that suits it best, found by a short run. A
sample is broken for us at any iterate, for them at the end of a run, so ours should not leave more.

Passes are counted outside of the attacks: the rows that go through the model, with or without a pass back. What
survivors need is counted by a plain search that knows nothing of dropping: from the same starts it takes all steps of a
run, and notes at which iterate each sample is first misclassified. A run that the sample survives needs T + 1 looks, at
the start, after each step; one that breaks it at iterate k (0 is the start) needs k + 1, and later runs need none.

On the natural model nearly everything breaks in the first steps, on the robust one little does.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import mnist
from benchmarks.apart import Apart
from benchmarks.peers import PEERS, SEED, Case, fastest, versions, warmed
from benchmarks.timing import FEWEST, Once, Report, Row, Timed, Value, interleaved, once
from sihg.core.draw import generator
from sihg.robust.attacks.attack import DRAWN
from sihg.robust.ball import noise

N, T, R = 2000, 50, 10
LEAST = {"natural": 10.0, "robust": 1.6}  # times of ours, of the fastest peer
MOST = 1.02  # our passes over those that survivors need
CLOSE = 1.5  # times of the fastest peer: slower ones have one repetition, which is enough to tell
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
            timed = repeated(
                {name: partial(apart, name, counted, name, case, sizes.get(name)) for name in ("ours", *PEERS)},
                repetitions,
            )
        over = {name: times.over(timed["ours"].first(len(times.wall))) for name, times in timed.items()}
        left = {name: 100 * (1 - float(times.value[0].double().mean())) for name, times in timed.items()}
        looks = {name: int(times.value[1]) for name, times in timed.items()}
        need = needed(case)
        tables[case.name] = [
            {
                "attack": name,
                "batch": str(sizes.get(name, "its own")),
                "s": times.milliseconds(1) / 1e3,
                "over ours": over[name][0],
                "CPU over ours": over[name][1],
                "passes a sample": looks[name] / N,
                "over those needed": looks[name] / need,
                "accuracy left, %": left[name],
                "repetitions": len(times.wall),
            }
            for name, times in timed.items()
        ]
        first = min(over[name][0] for name in PEERS)
        measured[f"{case.name}, the fastest peer over ours"] = first
        measured[f"{case.name}, our passes over those needed"] = looks["ours"] / need
        measured[f"{case.name}, passes needed a sample"] = need / N
        held += [first.median >= least, looks["ours"] <= MOST * need, left["ours"] <= min(left.values())]
    return Report(
        f"PGD-{T}-{R} on {N} MNIST images: the fastest of four peers, each with its best batch, takes at least "
        f"{LEAST['natural']:g} times our time on a natural model and {LEAST['robust']:g} times on a robust one; our "
        f"passes are at most {MOST} times what survivors need, and no peer leaves less accuracy",
        all(held),
        {**measured, "eps": mnist.EPS, "step": "2.5 eps / T", "seed": SEED, **versions()},
        tables,
    )


def repeated(calls: dict[str, Callable[[], Once]], repetitions: int) -> dict[str, Timed]:
    """One repetition of all, and more, FEWEST at most, of ours and the peers that come close to the fastest."""
    first = interleaved(calls, 1, warmed=True)
    quick = min(times.wall[0] for name, times in first.items() if name != "ours")
    close = {name: call for name, call in calls.items() if name == "ours" or first[name].wall[0] <= CLOSE * quick}
    more = interleaved(close, min(repetitions, FEWEST) - 1, warmed=True)
    return {name: times.and_then(more[name]) if name in more else times for name, times in first.items()}


def counted(name: str, case: Case, size: int | None) -> Once:
    """Run and time an attack: what it broke, and the rows that it sent through the model.

    They are counted at its first layer: ART calls layers, not the model.
    """
    call = warmed(name, case, size)
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
    shape = (DRAWN, *case.x.shape[1:])
    blocks = range(-(-len(case.x) // DRAWN))
    draws = (generator(SEED, "attack start", run, block) for block in blocks)
    return torch.cat([noise("linf", shape, case.eps, draw, case.x.dtype) for draw in draws])[: len(case.x)]
