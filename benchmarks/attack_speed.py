"""PGD-20 beside torchattacks, rai-toolbox, foolbox and ART: the same model object, batch, T, step and random start.

Everybody is timed until it is known which samples are broken: torchattacks, rai-toolbox and ART, which do not tell, get
one forward pass for it. rai-toolbox is spared the pixel box, which it does not have. Two settings:

- no sample breaks: labels are the model's own predictions and eps is tiny, so everybody makes all T passes. This
  compares the passes and what is around them;
- attacked as trained: a model that PGD AT has trained on enlarged digits, at the eps and with the labels of its
  training. Ours drops samples once they are broken, the others go on; how much that saves depends on the model, so the
  share of passes made and the accuracy that each attack leaves are in the table.

Ours chooses its own chunks. The others get the whole batch at once, and beside it the fastest of CHUNKS.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim import SGD

from benchmarks.timing import Ratio, Report, Row, Timed, Value, interleaved
from sihg.robust.attacks import PGD
from sihg.robust.data import load
from sihg.robust.data.batches import batches
from sihg.robust.methods import PGDAT
from sihg.robust.models import build

art_attacks: Any = import_module("art.attacks.evasion")  # these have no types
art_classification: Any = import_module("art.estimators.classification")
foolbox: Any = import_module("foolbox")
rai_optim: Any = import_module("rai_toolbox.optim")
rai_perturbations: Any = import_module("rai_toolbox.perturbations")
torchattacks: Any = import_module("torchattacks")

SEED = 0
T = 20
EPS, TINY = 0.25, 1e-6  # of training, as `sihg train` has it for digits; and where nothing breaks
EPOCHS, RAMP = 12, 4
CHUNKS = (64, 256, 1000)
LEAST = {"torchattacks": 0.95, "rai-toolbox": 0.95, "foolbox": 1.5, "ART": 1.5}  # times of ours; 0.95: not slower,
EVEN = dict.fromkeys(LEAST, 0.95)  # as far as a busy machine can tell. EVEN where no sample breaks
FEWEST = 7

Attack = Callable[[], Tensor]  # gives which samples are broken


@dataclass(frozen=True)
class Case:
    """A model, a batch and a radius; and how many times our time each peer has to take at least."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float
    least: Mapping[str, float]


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time all attacks in all cases."""
    repetitions = max(FEWEST, repetitions // 3)
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    holds = True
    for case in cases():
        tables[case.name], ratios = measure(case, repetitions)
        for name, ratio in ratios.items():
            measured[f"{case.name}, {name} over ours"] = ratio
            holds = holds and ratio.median >= case.least[name]
    return Report(
        "PGD-20 is not slower than torchattacks' and rai-toolbox's; attacked as trained, foolbox and ART take at least "
        "1.5 times its time (one batch, one thread; not slower: at least 0.95 of its time)",
        holds,
        {**measured, "T": T, "step": "2.5 eps / T", "repetitions": repetitions, "seed": SEED, **versions()},
        tables,
    )


def versions() -> dict[str, Value]:
    """Of the peers."""
    return {
        name: version(name) for name in ("torchattacks", "rai-toolbox", "foolbox", "adversarial-robustness-toolbox")
    }


def cases() -> list[Case]:
    """The small CNN in both settings, and a residual network where no sample breaks."""
    x, y = digits((1, 28, 28))
    model = trained(x, y)
    as_trained = Case(f"small-cnn, batch 1000, eps {EPS}", model, x[:1000], y[:1000], EPS, LEAST)
    colour, _ = digits((3, 32, 32))
    resnet = build("preact-resnet8", (3, 32, 32), 10, seed=SEED).eval()
    even = unbroken("small-cnn, batch 1000", model, x[:1000])
    return [as_trained, even, unbroken("preact-resnet8, batch 64", resnet, colour[:64])]


def unbroken(name: str, model: nn.Module, x: Tensor) -> Case:
    """The case in which no attack can break anything."""
    with torch.no_grad():
        return Case(f"{name}, no sample breaks", model, x, model(x).argmax(1), TINY, EVEN)


def digits(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The digits that come with the package, enlarged to `shape`."""
    train, _ = load("digits")
    x = interpolate(train.floats(), size=shape[1:], mode="bilinear").clamp_(0, 1)
    return x.expand(-1, shape[0], -1, -1).contiguous(), train.y


def trained(x: Tensor, y: Tensor) -> nn.Module:
    """The small CNN after a few epochs of PGD AT."""
    model = build("small-cnn", tuple(x.shape[1:]), 10, seed=SEED)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    method = PGDAT(eps=EPS, steps=5, ramp=RAMP)
    for batch in batches((x, y), size=50, seed=SEED, epochs=EPOCHS):
        method.step(model, batch, optimizer)
    return model.eval()


def measure(case: Case, repetitions: int) -> tuple[list[Row], dict[str, Ratio]]:
    """The table of a case, and each peer's time over ours, both with the whole batch."""
    whole = len(case.x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # rai-toolbox's
        calls: dict[str, Attack] = {"ours": partial(ours, case)}
        for name, make in PEERS.items():
            calls[name] = make(case, whole)
            best = fastest(make, case)
            if best != whole:
                calls[f"{name}, chunks of {best}"] = make(case, best)
        timed = interleaved(calls, repetitions)
    verdict = attack(case).run(case.model, case.x, case.y, SEED)
    share = verdict.passes / (T * whole)
    if case.least is EVEN:
        assert share == 1, f"{case.name}: samples break at eps {case.eps}"
    rows = [row(name, times, timed["ours"], share if name == "ours" else 1.0) for name, times in timed.items()]
    return rows, {name: timed[name].over(timed["ours"])[0] for name in PEERS}


def row(name: str, times: Timed, ours: Timed, share: float) -> Row:
    """The row of one attack."""
    wall, cpu = times.over(ours)
    return {
        "attack": name,
        "ms": times.milliseconds(1),
        "over ours": wall,
        "CPU over ours": cpu,
        "share of passes": share,
        "accuracy left, %": 100 * (1 - float(times.value.float().mean())),
    }


def fastest(make: Callable[[Case, int], Attack], case: Case) -> int:
    """The chunk size with which a peer is fastest, by two runs with few steps each."""
    seconds = {}
    for size in {min(size, len(case.x)) for size in CHUNKS}:
        call = make(replace(case, name="short"), size)
        call()
        begin = time.process_time()
        call()
        seconds[size] = time.process_time() - begin
    return min(seconds, key=lambda size: seconds[size])


def steps(case: Case) -> int:
    """T, or few where only chunk sizes are compared."""
    return 3 if case.name == "short" else T


def attack(case: Case) -> PGD:
    """Ours."""
    return PGD(eps=case.eps, steps=T)


def ours(case: Case) -> Tensor:
    """Which samples ours breaks, in chunks of its own choice."""
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
    T = steps(case)
    peer = torchattacks.PGD(case.model, eps=case.eps, alpha=2.5 * case.eps / T, steps=T, random_start=True)
    return chunked(lambda x, y: wrong(case.model, peer(x, y), y), case, size)


def of_rai(case: Case, size: int) -> Attack:
    """rai_toolbox's gradient_ascent with signed, projected steps."""
    T = steps(case)
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
    T = steps(case)
    model = foolbox.PyTorchModel(case.model, bounds=(0, 1), device="cpu")
    peer = foolbox.attacks.LinfPGD(abs_stepsize=2.5 * case.eps / T, steps=T, random_start=True)
    return chunked(lambda x, y: peer(model, x, y, epsilons=case.eps)[2], case, size)


def of_art(case: Case, size: int) -> Attack:
    """ART's ProjectedGradientDescentPyTorch, which cuts the batch itself."""
    T, shape = steps(case), tuple(case.x.shape[1:])
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
