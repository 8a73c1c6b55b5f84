"""PGD-20 beside torchattacks, rai-toolbox, foolbox and ART, as `peers.py` has them.

- The claims are about robust models: PGD AT has trained them for a while on enlarged digits, and they are attacked with
  some of these, at the eps of their training. Ours drops samples once they are broken, the others go on; how much that
  saves depends on the model, so the share of passes made and the accuracy that each attack leaves are in the table.
  The residual network's eps leaves about as much as an SVHN model of its kind keeps; a smaller one would save less.
  Peers get all samples as one batch; where there are LARGE many also in the batches that suit each best.
- For information, the same for a model of MNIST, which hardly breaks.
- For information, no sample breaks: labels are the model's own predictions and eps is tiny, so everybody makes all
  passes. This compares the passes and what is around them.
- The chunks of our attack, which `attacks/attack.py` fixes: what other sizes would cost.

The last two make SHORT steps. Trained models are kept in `--out`, and trained again when their recipe changes.
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

from benchmarks import mnist
from benchmarks.apart import Apart
from benchmarks.peers import BEST, PEERS, SEED, Case, fastest, ours, ratios, timed, versions
from benchmarks.timing import NotRun, Once, Report, Row, Timed, Value, interleaved
from sihg.robust.attacks.loop import rows_per_chunk
from sihg.robust.data import load
from sihg.robust.data.batches import batches
from sihg.robust.methods import PGDAT
from sihg.robust.models import build
from sihg.store.files import write_bytes

T, SHORT = 20, 5
TINY = 1e-6  # eps where nothing breaks
CHUNKS = (64, 128, 256, 512, 1000)
LARGE = 1000  # samples
LEAST = {
    "torchattacks": 1.0,
    "rai-toolbox": 1.0,
    "foolbox": 1.5,
    "ART": 1.5,
}  # times of ours, in each recipe's first case
FASTEST, FASTEST_AT_BEST = 1.3, 1.0  # of the fastest peer on LARGE samples: as one batch, and in its best batches
SECONDS, SECONDS_MORE = 45.0, 15.0  # for a table of the claims, and for one of the others


@dataclass(frozen=True)
class Recipe:
    """A model, how PGD AT trains it, and how many of its samples are attacked."""

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
    """Time all attacks."""
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    held = []
    for recipe in RECIPES:
        for n in recipe.attacked:
            case = robust(recipe, n, out)
            found = side_by_side(case, repetitions, SECONDS)
            whole, best = ratios(found)
            tables[case.name] = rows(case, found)
            measured |= {f"{case.name}, {name} over ours": ratio for name, ratio in whole.items()}
            if n == recipe.attacked[0]:
                held += [ratio.median >= LEAST[name] for name, ratio in whole.items()]
                tables[f"for information: {case.name}, our chunks"] = chunk_rows(case, repetitions)
            if n == LARGE:
                measured[f"{case.name}, the fastest peer over ours"] = min(whole.values())
                measured[f"{case.name}, the fastest peer in its best batches over ours"] = min(best.values())
                held += [min(whole.values()).median >= FASTEST, min(best.values()).median >= FASTEST_AT_BEST]
    even = unbroken(robust(RECIPES[0], LARGE, out))
    tables[f"for information: {even.name}"] = even_rows(even, repetitions)
    try:
        case = of_mnist(out)
    except NotRun as why:
        measured["for information: MNIST"] = f"not run: {why}"
    else:
        found = side_by_side(case, repetitions, SECONDS_MORE)
        tables[f"for information: {case.name}"] = rows(case, found)
    return Report(
        "on robust models torchattacks and rai-toolbox take at least the time of our PGD-20, foolbox and ART at least "
        f"1.5 times its time (one batch, one thread); with {LARGE} samples the fastest of them takes at least "
        f"{FASTEST} times its time, and in the batches that suit each best at least {FASTEST_AT_BEST} times",
        all(held),
        {**measured, "T": T, "T for information": SHORT, "step": "2.5 eps / T", "seed": SEED, **versions()},
        tables,
    )


def robust(recipe: Recipe, n: int, out: Path | None) -> Case:
    """A robust model, and the first of the samples it was trained on."""
    x, y = digits(recipe.shape)
    name = f"{recipe.model}, batch {n}, eps {recipe.eps:.3g}"
    return Case(name, trained(recipe, x, y, out), x[:n], y[:n], recipe.eps, T)


def of_mnist(out: Path | None) -> Case:
    """A robust model of MNIST, and test images."""
    x, y = mnist.images(LARGE)
    name = f"threshold-cnn of MNIST, batch {LARGE}, eps {mnist.EPS:.3g}"
    return Case(name, mnist.model("robust", out), x, y, mnist.EPS, T)


def digits(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The digits that come with the package, enlarged to `shape`."""
    train, _ = load("digits")
    x = interpolate(train.floats(), size=shape[1:], mode="bilinear").clamp_(0, 1)
    return x.expand(-1, shape[0], -1, -1).contiguous(), train.y


def trained(recipe: Recipe, x: Tensor, y: Tensor, out: Path | None) -> nn.Module:
    """The model after a few epochs of PGD AT, or as `out` has it."""
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


def unbroken(case: Case) -> Case:
    """The case in which no attack can break anything."""
    with torch.no_grad():
        y = case.model(case.x).argmax(1)
    name = f"{case.name.rpartition(',')[0]}, no sample breaks"
    return replace(case, name=name, y=y, eps=TINY, steps=SHORT)


def side_by_side(case: Case, repetitions: int, seconds: float) -> dict[str, Timed]:
    """Time ours, and peers with all samples as one batch; where these are LARGE many, also in their best batches."""
    n, names = len(case.x), ("ours", *PEERS)
    with Apart() as apart:
        sizes = {name: apart(name, fastest, name, case) for name in names}  # begins all processes, too
        calls: dict[str, Callable[[], Once]] = {name: partial(apart, name, timed, name, case) for name in names}
        for name, size in sizes.items():
            if name != "ours" and n >= LARGE > size:
                calls[f"{name}{BEST}{size}"] = partial(apart, name, timed, name, case, size)
        return interleaved(calls, repetitions, seconds, warmed=True)


def even_rows(case: Case, repetitions: int) -> list[Row]:
    """The table of the case in which nothing breaks."""
    found = side_by_side(case, repetitions, SECONDS_MORE)
    broken = [name for name, times in found.items() if bool(times.value.any())]
    assert not broken, f"samples break at eps {case.eps}: by {', '.join(broken)}"
    return rows(case, found)


def chunk_rows(case: Case, repetitions: int) -> list[Row]:
    """What the size of our chunks costs."""
    short, used = replace(case, steps=SHORT), min(rows_per_chunk(case.x.shape[1:]), len(case.x))
    sizes = sorted({used, *(size for size in CHUNKS if size <= len(case.x))})
    with Apart() as apart:
        calls = {str(size): partial(apart, "ours", timed, "ours", short, size) for size in sizes}
        found = interleaved(calls, repetitions, SECONDS_MORE, warmed=True)
    chosen = found[str(used)]
    return [
        {
            "chunk": size,
            "ms": times.milliseconds(1),
            f"over {used}": times.over(chosen)[0],
            f"CPU over {used}": times.over(chosen)[1],
            "repetitions": len(times.wall),
        }
        for size, times in found.items()
    ]


def rows(case: Case, found: dict[str, Timed]) -> list[Row]:
    """The rows of the attacks that were timed side by side."""
    passes = ours(case).run(case.model, case.x, case.y, SEED).passes
    share = {"ours": passes / (case.steps * len(case.x))}
    return [
        {
            "attack": name,
            "ms": times.milliseconds(1),
            "over ours": times.over(found["ours"])[0],
            "CPU over ours": times.over(found["ours"])[1],
            "share of passes": share.get(name, 1.0),
            "accuracy left, %": 100 * (1 - float(times.value.float().mean())),
            "repetitions": len(times.wall),
        }
        for name, times in found.items()
    ]
