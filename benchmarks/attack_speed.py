"""PGD-20 beside torchattacks, rai-toolbox, foolbox and ART: the same model object, batch, T, step and random start.

Everybody is timed until it is known which samples are broken: torchattacks, rai-toolbox and ART, which do not tell, get
one forward pass for it. rai-toolbox is spared the pixel box, which it does not have.

- The claim is about robust models: PGD AT has trained them for a while on enlarged digits, and they are attacked with
  some of these, at the eps of their training. Ours drops samples once they are broken, the others go on; how much that
  saves depends on the model, so the share of passes made and the accuracy that each attack leaves are in the table.
  The residual network's eps leaves about as much as an SVHN model of its kind keeps; a smaller one would save less.
- For information, no sample breaks: labels are the model's own predictions and eps is tiny, so everybody makes all
  passes. This compares the passes and what is around them, and is what to expect of a model that hardly breaks. The
  peers get the whole batch at once, as above, and beside it the fastest of PEER_CHUNKS.
- The chunks of our attack, which `attacks/attack.py` fixes: what other sizes would cost.

The last two make SHORT steps. Trained models are kept in `--out`, and trained again when their recipe changes.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim import SGD

from benchmarks.timing import Ratio, Report, Row, Timed, Value, interleaved
from sihg.robust.attacks import PGD
from sihg.robust.attacks import attack as base
from sihg.robust.data import load
from sihg.robust.data.batches import batches
from sihg.robust.methods import PGDAT
from sihg.robust.models import build
from sihg.runs.files import write_whole

art_attacks: Any = import_module("art.attacks.evasion")  # these have no types
art_classification: Any = import_module("art.estimators.classification")
foolbox: Any = import_module("foolbox")
rai_optim: Any = import_module("rai_toolbox.optim")
rai_perturbations: Any = import_module("rai_toolbox.perturbations")
torchattacks: Any = import_module("torchattacks")

SEED = 0
T, SHORT = 20, 5
TINY = 1e-6  # eps where nothing breaks
CHUNKS, PEER_CHUNKS = (64, 128, 256, 512, 1000), (64, 256, 1000)
LEAST = {"torchattacks": 1.0, "rai-toolbox": 1.0, "foolbox": 1.5, "ART": 1.5}  # times of ours
SECONDS, SECONDS_MORE = 45.0, 15.0  # for a table of the claim, and for one of the others

Attack = Callable[[], Tensor]  # gives which samples are broken


@dataclass(frozen=True)
class Recipe:
    """A model, how PGD AT trains it, and how many of its samples are attacked."""

    model: str
    shape: tuple[int, int, int]
    attacked: int
    eps: float
    steps: int
    ramp: float
    epochs: int
    lr: float


RECIPES = (
    Recipe("small-cnn", (1, 28, 28), attacked=1000, eps=0.25, steps=5, ramp=4, epochs=12, lr=0.05),
    Recipe("preact-resnet8", (3, 32, 32), attacked=256, eps=0.1, steps=2, ramp=3, epochs=4, lr=0.1),
)


@dataclass(frozen=True)
class Case:
    """A model, a batch, a radius and a number of steps."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float
    steps: int = T


def run(repetitions: int, out: Path | None) -> Report:
    """Time all attacks."""
    cases = [robust(recipe, out) for recipe in RECIPES]
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    holds = True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # rai-toolbox's
        for case in cases:
            tables[case.name], ratios = against_peers(case, repetitions)
            for name, ratio in ratios.items():
                measured[f"{case.name}, {name} over ours"] = ratio
                holds = holds and ratio.median >= LEAST[name]
        even = unbroken(cases[0])
        tables[f"for information: {even.name}"] = even_rows(even, repetitions)
    for case in cases:
        tables[f"for information: {case.name}, our chunks"] = chunk_rows(case, repetitions)
    return Report(
        "on robust models torchattacks and rai-toolbox take at least the time of our PGD-20, foolbox and ART at least "
        "1.5 times its time (one batch, one thread)",
        holds,
        {**measured, "T": T, "T for information": SHORT, "step": "2.5 eps / T", "seed": SEED, **versions()},
        tables,
    )


def versions() -> dict[str, Value]:
    """Of the peers."""
    return {
        name: version(name) for name in ("torchattacks", "rai-toolbox", "foolbox", "adversarial-robustness-toolbox")
    }


def robust(recipe: Recipe, out: Path | None) -> Case:
    """A robust model, and the first of the samples it was trained on."""
    x, y = digits(recipe.shape)
    n, name = recipe.attacked, f"{recipe.model}, batch {recipe.attacked}, eps {recipe.eps:.3g}"
    return Case(name, trained(recipe, x, y, out), x[:n], y[:n], recipe.eps)


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
        write_whole(file, lambda path: save_file(weights, path, about))
    return model.eval()


def unbroken(case: Case) -> Case:
    """The case in which no attack can break anything."""
    with torch.no_grad():
        y = case.model(case.x).argmax(1)
    name = f"{case.name.rpartition(',')[0]}, no sample breaks"
    return replace(case, name=name, y=y, eps=TINY, steps=SHORT)


def against_peers(case: Case, repetitions: int) -> tuple[list[Row], dict[str, Ratio]]:
    """The table of a case, and each peer's time over ours, all with the whole batch."""
    for call in attacks(replace(case, steps=1)).values():  # warms up: a run of T steps takes seconds
        call()
    timed = interleaved(attacks(case), repetitions, SECONDS, warmed=True)
    return rows(case, timed), {name: timed[name].over(timed["ours"])[0] for name in PEERS}


def even_rows(case: Case, repetitions: int) -> list[Row]:
    """The table of the case in which nothing breaks: peers with the whole batch and with their fastest chunks."""
    calls = attacks(case)
    for name, make in PEERS.items():
        best = fastest(make, case)
        if best != len(case.x):
            calls[f"{name}, chunks of {best}"] = make(case, best)
    timed = interleaved(calls, repetitions, SECONDS_MORE, warmed=True)
    broken = [name for name, times in timed.items() if bool(times.value.any())]
    assert not broken, f"samples break at eps {case.eps}: by {', '.join(broken)}"
    return rows(case, timed)


def chunk_rows(case: Case, repetitions: int) -> list[Row]:
    """What the size of our chunks costs."""
    short, used = replace(case, steps=SHORT), min(base.rows_at_once(case.x.shape[1:]), len(case.x))
    sizes = sorted({used, *(size for size in CHUNKS if size <= len(case.x))})
    calls = {str(size): partial(ours, short, size) for size in sizes}
    timed = interleaved(calls, repetitions, SECONDS_MORE, warmed=True)
    chosen = timed[str(used)]
    return [
        {
            "chunk": size,
            "ms": times.milliseconds(1),
            f"over {used}": times.over(chosen)[0],
            f"CPU over {used}": times.over(chosen)[1],
            "repetitions": len(times.wall),
        }
        for size, times in timed.items()
    ]


def attacks(case: Case) -> dict[str, Attack]:
    """Ours and the peers', these with the whole batch."""
    return {"ours": partial(ours, case), **{name: make(case, len(case.x)) for name, make in PEERS.items()}}


def rows(case: Case, timed: dict[str, Timed]) -> list[Row]:
    """The rows of the attacks that were timed side by side."""
    passes = attack(case).run(case.model, case.x, case.y, SEED).passes
    share = {"ours": passes / (case.steps * len(case.x))}
    return [
        {
            "attack": name,
            "ms": times.milliseconds(1),
            "over ours": times.over(timed["ours"])[0],
            "CPU over ours": times.over(timed["ours"])[1],
            "share of passes": share.get(name, 1.0),
            "accuracy left, %": 100 * (1 - float(times.value.float().mean())),
            "repetitions": len(times.wall),
        }
        for name, times in timed.items()
    ]


def fastest(make: Callable[[Case, int], Attack], case: Case) -> int:
    """The chunk size with which a peer is fastest, by one run of few steps each."""
    seconds = {}
    for size in {min(size, len(case.x)) for size in PEER_CHUNKS}:
        call = make(replace(case, steps=2), size)
        call()
        begin = time.process_time()
        call()
        seconds[size] = time.process_time() - begin
    return min(seconds, key=lambda size: seconds[size])


def attack(case: Case) -> PGD:
    """Ours."""
    return PGD(eps=case.eps, steps=case.steps)


def ours(case: Case, chunk: int | None = None) -> Tensor:
    """Which samples ours breaks, in chunks of its own choice or in others."""
    rows = chunk or base.rows_at_once(case.x.shape[1:])
    with patch.object(base, "rows_at_once", lambda _shape: rows):
        return attack(case).run(case.model, case.x, case.y, SEED).broken


def chunked(call: Callable[[Tensor, Tensor], Tensor], case: Case, size: int) -> Attack:
    """A peer on chunks of the batch, one after the other."""
    return lambda: torch.cat([call(x, y) for x, y in zip(case.x.split(size), case.y.split(size), strict=True)])


def wrong(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which samples the model gets wrong."""
    with torch.no_grad():
        logits: Tensor = model(x)
        return logits.argmax(1) != y


def of_torchattacks(case: Case, size: int) -> Attack:
    """torchattacks.PGD."""
    T = case.steps
    peer = torchattacks.PGD(case.model, eps=case.eps, alpha=2.5 * case.eps / T, steps=T, random_start=True)
    return chunked(lambda x, y: wrong(case.model, peer(x, y), y), case, size)


def of_rai(case: Case, size: int) -> Attack:
    """rai_toolbox's gradient_ascent with signed, projected steps."""
    T = case.steps
    start = partial(rai_perturbations.uniform_like_linf_n_ball_, epsilon=case.eps)

    def call(x: Tensor, y: Tensor) -> Tensor:
        found, _ = rai_perturbations.gradient_ascent(
            model=case.model,
            data=x,
            target=y,
            optimizer=rai_optim.LinfProjectedOptim,
            perturbation_model=rai_perturbations.AdditivePerturbation(x, start),
            steps=T,
            epsilon=case.eps,
            lr=2.5 * case.eps / T,
        )
        return wrong(case.model, found, y)

    return chunked(call, case, size)


def of_foolbox(case: Case, size: int) -> Attack:
    """foolbox.attacks.LinfPGD, which tells what it broke."""
    T = case.steps
    model = foolbox.PyTorchModel(case.model, bounds=(0, 1), device="cpu")
    peer = foolbox.attacks.LinfPGD(abs_stepsize=2.5 * case.eps / T, steps=T, random_start=True)
    return chunked(lambda x, y: peer(model, x, y, epsilons=case.eps)[2], case, size)


def of_art(case: Case, size: int) -> Attack:
    """ART's ProjectedGradientDescentPyTorch, which cuts the batch itself."""
    T, shape = case.steps, tuple(case.x.shape[1:])
    classifier = art_classification.PyTorchClassifier(
        case.model, nn.CrossEntropyLoss(), shape, 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    peer = art_attacks.ProjectedGradientDescentPyTorch(
        classifier,
        eps=case.eps,
        eps_step=2.5 * case.eps / T,
        max_iter=T,
        num_random_init=1,
        batch_size=size,
        verbose=False,
    )
    x, y = case.x.numpy(), case.y.numpy()
    return lambda: wrong(case.model, torch.from_numpy(peer.generate(x, y)), case.y)


PEERS: dict[str, Callable[[Case, int], Attack]] = {
    "torchattacks": of_torchattacks,
    "rai-toolbox": of_rai,
    "foolbox": of_foolbox,
    "ART": of_art,
}
