"""AutoAttack's standard set, ours beside pyautoattack's: the time, and what each attack breaks.

The same model and MNIST test images, each library in a process of its own (`apart.py` says why). Ours is timed as
`sihg.evaluate` runs it, its checks included, theirs as `run_standard_evaluation` does, theirs included: both attack
what is classified correctly, each attack what the ones before left. pyautoattack gets the batch of BATCHES with which a
short form of the set is fastest: one target class instead of nine, fewer queries.

Then each of the four attacks alone attacks what is classified correctly, of a robust and of a natural model, once. In
pyautoattack these are of the version `custom`, whose APGD would have five runs: it is set to one, as in `standard`.
"""

from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import sihg
from benchmarks import mnist
from benchmarks.apart import Apart
from benchmarks.timing import BATCHES, Once, Report, Row, interleaved, once
from sihg.robust.attacks.registry import STANDARD, build_attack
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data import as_samples
from sihg.robust.threat import Ball

peer: Any = import_module("pyautoattack")  # has no types

N, SEED = 1000, 0
LEAST = 1.5  # times of ours
ABOVE, APART = 0.3, 1.0  # points of accuracy: of ours over theirs, and of one attack's between ours and theirs
QUERIES = 300  # of the short form
SECONDS = 0.0  # a repetition takes long: no more of them than must be


def run(repetitions: int, out: Path | None) -> Report:
    """Time the whole set on the robust model, compare attack by attack on both."""
    x, y = mnist.images(N)
    models = {kind: mnist.model(kind, out) for kind in ("robust", "natural")}
    robust = models["robust"]
    with Apart() as apart:
        batch = apart("pyautoattack", fastest, robust, x, y)
        apart("ours", our_attack, "apgd-ce", robust, x, y)  # warms up
        calls = {
            "ours": partial(apart, "ours", our_set, robust, x, y),
            "pyautoattack": partial(apart, "pyautoattack", their_set, robust, x, y, batch),
        }
        timed = interleaved(calls, repetitions, SECONDS, warmed=True)
        each = [alone(apart, kind, name, model, x, y, batch) for kind, model in models.items() for name in STANDARD]
    left = {name: 100 * float(times.value) for name, times in timed.items()}
    ratio, of_cpu = timed["pyautoattack"].over(timed["ours"])
    furthest = max(abs(ours - others) for _, ours, others in each)
    return Report(
        f"standard on {N} MNIST images and a robust threshold-cnn: pyautoattack takes at least {LEAST} times our time, "
        f"our accuracy is at most {ABOVE} points above theirs, and none of its attacks alone, on this and a natural "
        f"model, leaves more than {APART:g} point more or less than theirs",
        ratio.median >= LEAST and left["ours"] <= left["pyautoattack"] + ABOVE and furthest <= APART,
        {
            "pyautoattack over ours": ratio,
            "of CPU time": of_cpu,
            "accuracy of ours over theirs, points": left["ours"] - left["pyautoattack"],
            "attacks alone differ at most by, points": furthest,
            "batch of pyautoattack": str(batch),
            "eps": mnist.EPS,
            "seed": SEED,
            "pyautoattack": version("pyautoattack"),
        },
        {
            "the whole set": [
                {
                    "who": name,
                    "s": times.milliseconds(1) / 1e3,
                    "over ours": times.over(timed["ours"])[0],
                    "CPU over ours": times.over(timed["ours"])[1],
                    "accuracy left, %": left[name],
                    "repetitions": len(times.wall),
                }
                for name, times in timed.items()
            ],
            "each attack alone": [row for row, *_ in each],
        },
    )


def our_set(model: nn.Module, x: Tensor, y: Tensor) -> Once:
    """Run and time ours: the accuracy it leaves."""
    return once(lambda: sihg.evaluate(model, (x, y), eps=mnist.EPS, attacks="standard", seed=SEED).accuracy)


def their_set(model: nn.Module, x: Tensor, y: Tensor, batch: int, attacks: list[str] | None = None) -> Once:
    """Run and time theirs, or some of its attacks: the accuracy they leave."""
    auto = theirs(model, attacks)
    return once(lambda: accuracy(auto, x, y, batch))


def our_attack(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Once:
    """Run and time one attack of ours alone: the accuracy it leaves."""
    plan = {part: build_attack(part, Ball(mnist.EPS)) for part in ("natural", name)}
    return once(lambda: next(iter(run_attacks(model, as_samples((x, y)), {name: plan}, seed=SEED))).accuracy)


def theirs(model: nn.Module, attacks: list[str] | None = None) -> Any:
    """Their standard set, or some of its attacks."""
    kind = {"version": "custom", "attacks": attacks} if attacks else {"version": "standard"}
    auto = peer.AutoAttack(model, norm="Linf", eps=mnist.EPS, seed=SEED, device="cpu", **kind)
    auto.apgd.n_restarts = 1
    return auto


def accuracy(auto: Any, x: Tensor, y: Tensor, batch: int) -> float:
    """What their attacks leave: they give the class of each sample at the point found."""
    _, prediction = auto.run_standard_evaluation(x, y, batch_size=batch)
    return float((prediction == y).double().mean())


def fastest(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """The batch with which a short form of their set is fastest, after one that warms up."""
    seconds = {}
    sizes = sorted({min(batch, len(x)) for batch in BATCHES})
    for batch in (sizes[-1], *sizes):
        auto = theirs(model)
        auto.apgd_targeted.n_target_classes = auto.fab.n_target_classes = 1
        auto.square.n_queries = QUERIES
        seconds[batch] = once(partial(accuracy, auto, x, y, batch)).cpu
    return min(seconds, key=lambda batch: seconds[batch])


def alone(
    apart: Apart, kind: str, name: str, model: nn.Module, x: Tensor, y: Tensor, batch: int
) -> tuple[Row, float, float]:
    """What holds under one attack alone, in percent, as a row and as figures: ours, theirs."""
    mine: Once = apart("ours", our_attack, name, model, x, y)
    peers: Once = apart("pyautoattack", their_set, model, x, y, batch, [name])
    ours, others = 100 * mine.value, 100 * peers.value
    row: Row = {"model": kind, "attack": name, "ours, %": ours, "pyautoattack, %": others}
    return {**row, "CPU over ours": peers.cpu / mine.cpu}, ours, others
