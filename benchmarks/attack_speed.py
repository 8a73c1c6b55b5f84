"""Compare our PGD-20 with that of torchattacks, rai-toolbox, foolbox and ART (set up in `pgd_peers.py`).

- The claims are about robust models. PGD AT trains them for a short time on enlarged digits; they are attacked on
  some of these images, at the eps of training. Our attack drops samples once they are broken, the others continue.
  How much this saves depends on the model, so the table has the share of passes made and the accuracy that each
  attack leaves. The residual network at its eps keeps about the accuracy of an SVHN model of its kind; a smaller eps
  would save less.
- Peers get all samples as one batch. With LARGE samples they also run in their best batch size.
- For information: a model of MNIST of which few samples break.
- For information: no sample breaks, since labels are the model's predictions and eps is tiny. All libraries make all
  passes; this compares the passes and the code around them.
- For information: our attack with other chunk sizes than `sihg/robust/attacks/runner.py` chooses.

The last two take SHORT_STEPS steps. Trained models are kept in `--out`, and trained again when their recipe changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim import SGD

from benchmarks import mnist_models
from benchmarks.pgd_peers import (
    BEST_BATCHES,
    PEERS,
    SEED,
    Case,
    find_best_batch_size,
    our_pgd,
    ratios_to_ours,
    time_attack,
    versions,
)
from benchmarks.separate_processes import SeparateProcesses
from benchmarks.timing import Measurement, Report, Row, SkipBenchmark, Timings, Value, time_interleaved
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.data import load
from sihg.robust.data.batches import batches
from sihg.robust.methods import PGDAT
from sihg.robust.models import build
from sihg.store.files import write_bytes

T, SHORT_STEPS = 20, 5
TINY_EPS = 1e-6  # no sample breaks
CHUNK_SIZES = (64, 128, 256, 512, 1000)
LARGE = 1000  # samples
MIN_RATIOS = {
    "torchattacks": 1.0,
    "rai-toolbox": 1.0,
    "foolbox": 1.5,
    "ART": 1.5,
}  # of each peer's time to ours, in the first case of each recipe
MIN_RATIO_ONE_BATCH, MIN_RATIO_BEST_BATCHES = 1.3, 1.0  # of the fastest peer's time to ours on LARGE samples
SECONDS, SECONDS_INFORMATION = 45.0, 15.0  # time limits of a table for a claim, and for information


@dataclass(frozen=True)
class Recipe:
    """A model, how PGD AT trains it, and how many samples are attacked."""

    model: str
    shape: tuple[int, int, int]
    attacked: tuple[int, ...]
    eps: float
    steps: int
    ramp: float
    epochs: int
    lr: float


RECIPES = (
    Recipe("small-cnn", (1, 28, 28), attacked=(LARGE,), eps=0.25, steps=5, ramp=4, epochs=12, lr=0.05),
    Recipe("preact-resnet8", (3, 32, 32), attacked=(256, LARGE), eps=0.1, steps=2, ramp=3, epochs=4, lr=0.1),
)


def run(repetitions: int, out: Path | None) -> Report:
    """Time all attacks on all cases."""
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    held = []
    for recipe in RECIPES:
        for n in recipe.attacked:
            case = robust_case(recipe, n, out)
            timings = time_all(case, repetitions, SECONDS)
            whole, best = ratios_to_ours(timings)
            tables[case.name] = attack_rows(case, timings)
            measured |= {f"{case.name}, {name} over ours": ratio for name, ratio in whole.items()}
            if n == recipe.attacked[0]:
                held += [ratio.median >= MIN_RATIOS[name] for name, ratio in whole.items()]
                tables[f"for information: {case.name}, our chunks"] = chunk_rows(case, repetitions)
            if n == LARGE:
                measured[f"{case.name}, the fastest peer over ours"] = min(whole.values())
                measured[f"{case.name}, the fastest peer in its best batches over ours"] = min(best.values())
                held += [
                    min(whole.values()).median >= MIN_RATIO_ONE_BATCH,
                    min(best.values()).median >= MIN_RATIO_BEST_BATCHES,
                ]
    unbreakable = unbreakable_case(robust_case(RECIPES[0], LARGE, out))
    tables[f"for information: {unbreakable.name}"] = unbreakable_rows(unbreakable, repetitions)
    try:
        case = mnist_case(out)
    except SkipBenchmark as reason:
        measured["for information: MNIST"] = f"skipped: {reason}"
    else:
        timings = time_all(case, repetitions, SECONDS_INFORMATION)
        tables[f"for information: {case.name}"] = attack_rows(case, timings)
    return Report(
        "on robust models torchattacks and rai-toolbox take at least the time of our PGD-20, foolbox and ART at least "
        f"1.5 times (one batch, one thread); with {LARGE} samples the fastest peer takes at least "
        f"{MIN_RATIO_ONE_BATCH} times our time, in its best batch size at least {MIN_RATIO_BEST_BATCHES} times",
        all(held),
        {**measured, "T": T, "T for information": SHORT_STEPS, "step": "2.5 eps / T", "seed": SEED, **versions()},
        tables,
    )


def robust_case(recipe: Recipe, n: int, out: Path | None) -> Case:
    """Return a robust model and the first n samples it was trained on."""
    x, y = enlarged_digits(recipe.shape)
    name = f"{recipe.model}, batch {n}, eps {recipe.eps:.3g}"
    return Case(name, load_or_train(recipe, x, y, out), x[:n], y[:n], recipe.eps, T)


def mnist_case(out: Path | None) -> Case:
    """Return a robust model of MNIST and test images."""
    x, y = mnist_models.load_images(LARGE)
    name = f"threshold-cnn of MNIST, batch {LARGE}, eps {mnist_models.EPS:.3g}"
    return Case(name, mnist_models.load_model("robust", out), x, y, mnist_models.EPS, T)


def enlarged_digits(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Return the bundled training digits, enlarged to `shape`."""
    train, _ = load("digits")
    x = interpolate(train.floats(), size=shape[1:], mode="bilinear").clamp_(0, 1)
    return x.expand(-1, shape[0], -1, -1).contiguous(), train.y


def load_or_train(recipe: Recipe, x: Tensor, y: Tensor, out: Path | None) -> nn.Module:
    """Return the model after a few epochs of PGD AT; read it from `out` if it is there."""
    model, about = build(recipe.model, recipe.shape, 10, seed=SEED), {"recipe": str(recipe)}
    file = out / f"{recipe.model}.safetensors" if out else None
    if file and file.is_file():
        with safe_open(file, "pt") as kept:
            same = kept.metadata() == about
        if same:
            model.load_state_dict(load_file(file))
            return model.eval()
    optimizer = SGD(model.parameters(), lr=recipe.lr, momentum=0.9)
    method = PGDAT(eps=recipe.eps, steps=recipe.steps, ramp=recipe.ramp)
    for batch in batches((x, y), size=50, seed=SEED, epochs=recipe.epochs):
        method.step(model, batch, optimizer)
    if file:
        weights = {name: value.contiguous() for name, value in model.state_dict().items()}
        write_bytes(file, save(weights, about))
    return model.eval()


def unbreakable_case(case: Case) -> Case:
    """Return the case with tiny eps and predicted labels, in which no sample breaks."""
    with torch.no_grad():
        y = case.model(case.x).argmax(1)
    name = f"{case.name.rpartition(',')[0]}, no sample breaks"
    return replace(case, name=name, y=y, eps=TINY_EPS, steps=SHORT_STEPS)


def time_all(case: Case, repetitions: int, seconds: float) -> dict[str, Timings]:
    """Time our attack and the peers with one batch; with LARGE samples, peers also in their best batch size."""
    n, names = len(case.x), ("ours", *PEERS)
    with SeparateProcesses() as processes:
        sizes = {name: processes(name, find_best_batch_size, name, case) for name in names}  # also starts all processes
        calls: dict[str, Callable[[], Measurement]] = {
            name: partial(processes, name, time_attack, name, case) for name in names
        }
        for name, size in sizes.items():
            if name != "ours" and n >= LARGE > size:
                calls[f"{name}{BEST_BATCHES}{size}"] = partial(processes, name, time_attack, name, case, size)
        return time_interleaved(calls, repetitions, seconds, warmed=True)


def unbreakable_rows(case: Case, repetitions: int) -> list[Row]:
    """Return the table of the case in which no sample breaks."""
    timings = time_all(case, repetitions, SECONDS_INFORMATION)
    broken = [name for name, times in timings.items() if bool(times.value.any())]
    assert not broken, f"samples break at eps {case.eps} under {', '.join(broken)}"
    return attack_rows(case, timings)


def chunk_rows(case: Case, repetitions: int) -> list[Row]:
    """Return the table of our attack with different chunk sizes."""
    short, used = replace(case, steps=SHORT_STEPS), min(rows_per_chunk(case.x.shape[1:]), len(case.x))
    sizes = sorted({used, *(size for size in CHUNK_SIZES if size <= len(case.x))})
    with SeparateProcesses() as processes:
        calls = {str(size): partial(processes, "ours", time_attack, "ours", short, size) for size in sizes}
        timings = time_interleaved(calls, repetitions, SECONDS_INFORMATION, warmed=True)
    chosen = timings[str(used)]
    return [
        {
            "chunk": size,
            "ms": times.milliseconds(1),
            f"over {used}": times.over(chosen)[0],
            f"CPU over {used}": times.over(chosen)[1],
            "repetitions": len(times.wall),
        }
        for size, times in timings.items()
    ]


def attack_rows(case: Case, timings: dict[str, Timings]) -> list[Row]:
    """Return the table of attacks that were timed in turn."""
    passes = our_pgd(case).run(case.model, case.x, case.y, SEED).passes
    share = {"ours": passes / (case.steps * len(case.x))}
    return [
        {
            "attack": name,
            "ms": times.milliseconds(1),
            "over ours": times.over(timings["ours"])[0],
            "CPU over ours": times.over(timings["ours"])[1],
            "share of passes": share.get(name, 1.0),
            "accuracy left, %": 100 * (1 - float(times.value.float().mean())),
            "repetitions": len(times.wall),
        }
        for name, times in timings.items()
    ]
