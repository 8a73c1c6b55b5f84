"""Compare our AutoAttack standard set with pyautoattack's: the time, and the accuracy that each attack leaves.

Both get the same model and MNIST test images, in separate processes (`separate_processes.py` says why). Ours is timed
in `sihg.evaluate`, theirs in `run_standard_evaluation`, both with their checks. Both attack the correctly classified
samples, each attack those that the earlier ones left unbroken. pyautoattack gets the batch size of PEER_BATCH_SIZES
that is fastest for a short form of the set: one target class instead of nine, fewer queries.

Then each of the four attacks runs alone, once, on all correctly classified samples of a robust and of a natural
model. In pyautoattack this is the version `custom`, whose APGD has five restarts; it is set to one, as in `standard`.
"""

from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import sihg
from benchmarks import mnist_models
from benchmarks.separate_processes import SeparateProcesses
from benchmarks.timing import PEER_BATCH_SIZES, Measurement, Report, Row, time_interleaved, time_once
from sihg.robust.attacks.registry import STANDARD, build_attack
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data import as_samples
from sihg.robust.threat import Ball

peer: Any = import_module("pyautoattack")  # untyped

N, SEED = 1000, 0
MIN_RATIO = 1.5  # of their time to ours
MAX_ABOVE, MAX_DIFFERENCE = 0.3, 1.0  # points of accuracy: ours above theirs for the set; either way for one attack
SHORT_QUERIES = 300  # of the short form
SECONDS = 0.0  # a repetition takes long, so MIN_REPETITIONS are enough


def run(repetitions: int, out: Path | None) -> Report:
    """Time the whole set on the robust model, compare attack by attack on both."""
    x, y = mnist_models.load_images(N)
    models = {kind: mnist_models.load_model(kind, out) for kind in ("robust", "natural")}
    robust = models["robust"]
    with SeparateProcesses() as processes:
        batch = processes("pyautoattack", find_best_batch_size, robust, x, y)
        processes("ours", our_attack, "apgd-ce", robust, x, y)  # a warm-up
        calls = {
            "ours": partial(processes, "ours", our_set, robust, x, y),
            "pyautoattack": partial(processes, "pyautoattack", their_set, robust, x, y, batch),
        }
        timings = time_interleaved(calls, repetitions, SECONDS, warmed=True)
        each = [
            compare_attack(processes, kind, name, model, x, y, batch)
            for kind, model in models.items()
            for name in STANDARD
        ]
    left = {name: 100 * float(times.value) for name, times in timings.items()}
    ratio, cpu_ratio = timings["pyautoattack"].over(timings["ours"])
    largest_difference = max(abs(ours - others) for _, ours, others in each)
    return Report(
        f"standard on {N} MNIST images and a robust threshold-cnn: pyautoattack takes at least {MIN_RATIO} times our "
        f"time, our accuracy is at most {MAX_ABOVE} points above theirs, and none of the attacks alone, on this and "
        f"on a natural model, differs by more than {MAX_DIFFERENCE:g} point from theirs",
        ratio.median >= MIN_RATIO
        and left["ours"] <= left["pyautoattack"] + MAX_ABOVE
        and largest_difference <= MAX_DIFFERENCE,
        {
            "pyautoattack over ours": ratio,
            "ratio of CPU time": cpu_ratio,
            "our accuracy minus theirs, points": left["ours"] - left["pyautoattack"],
            "largest difference of one attack, points": largest_difference,
            "batch size of pyautoattack": str(batch),
            "eps": mnist_models.EPS,
            "seed": SEED,
            "pyautoattack": version("pyautoattack"),
        },
        {
            "the whole set": [
                {
                    "library": name,
                    "s": times.milliseconds(1) / 1e3,
                    "over ours": times.over(timings["ours"])[0],
                    "CPU over ours": times.over(timings["ours"])[1],
                    "accuracy left, %": left[name],
                    "repetitions": len(times.wall),
                }
                for name, times in timings.items()
            ],
            "each attack alone": [row for row, *_ in each],
        },
    )


def our_set(model: nn.Module, x: Tensor, y: Tensor) -> Measurement:
    """Run and time our set; its value is the accuracy left."""
    return time_once(lambda: sihg.evaluate(model, (x, y), eps=mnist_models.EPS, attacks="standard", seed=SEED).accuracy)


def their_set(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    batch: int,
    attacks: list[str] | None = None,
    eps: float = mnist_models.EPS,
) -> Measurement:
    """Run and time their set, or only some of its attacks; its value is the accuracy left."""
    auto = make_autoattack(model, attacks, eps)
    return time_once(lambda: accuracy(auto, x, y, batch))


def our_attack(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Measurement:
    """Run and time one of our attacks alone; its value is the accuracy left."""
    plan = {part: build_attack(part, Ball(mnist_models.EPS)) for part in ("natural", name)}
    return time_once(lambda: next(iter(run_attacks(model, as_samples((x, y)), {name: plan}, seed=SEED))).accuracy)


def make_autoattack(model: nn.Module, attacks: list[str] | None = None, eps: float = mnist_models.EPS) -> Any:
    """Return their standard set, or only some of its attacks."""
    kind = {"version": "custom", "attacks": attacks} if attacks else {"version": "standard"}
    auto = peer.AutoAttack(model, norm="Linf", eps=eps, seed=SEED, device="cpu", **kind)
    auto.apgd.n_restarts = 1
    return auto


def accuracy(auto: Any, x: Tensor, y: Tensor, batch: int) -> float:
    """Return the accuracy that their attacks leave, from the predictions at the points they found."""
    _, prediction = auto.run_standard_evaluation(x, y, batch_size=batch)
    return float((prediction == y).double().mean())


def find_best_batch_size(model: nn.Module, x: Tensor, y: Tensor, eps: float = mnist_models.EPS) -> int:
    """Return the batch size with which a short form of their set is fastest, after a warm-up."""
    seconds = {}
    sizes = sorted({min(batch, len(x)) for batch in PEER_BATCH_SIZES})
    for batch in (sizes[-1], *sizes):
        auto = make_autoattack(model, eps=eps)
        auto.apgd_targeted.n_target_classes = auto.fab.n_target_classes = 1
        auto.square.n_queries = SHORT_QUERIES
        seconds[batch] = time_once(partial(accuracy, auto, x, y, batch)).cpu
    return min(seconds, key=lambda batch: seconds[batch])


def compare_attack(
    processes: SeparateProcesses, kind: str, name: str, model: nn.Module, x: Tensor, y: Tensor, batch: int
) -> tuple[Row, float, float]:
    """Run one attack alone in both; return the row of the table and both accuracies in percent."""
    mine: Measurement = processes("ours", our_attack, name, model, x, y)
    peers: Measurement = processes("pyautoattack", their_set, model, x, y, batch, [name])
    ours, others = 100 * mine.value, 100 * peers.value
    row: Row = {"model": kind, "attack": name, "ours, %": ours, "pyautoattack, %": others}
    return {**row, "CPU over ours": peers.cpu / mine.cpu}, ours, others
