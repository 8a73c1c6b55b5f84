"""PGD by us and by torchattacks, rai-toolbox, foolbox and ART: one case, and everybody's way to attack it.

Everybody gets the same model, samples and steps, works in a process of its own (`apart.py` says why), starts at random,
and goes on until it is known which samples some run breaks: torchattacks, rai-toolbox and ART, which do not tell, get
one forward pass for it. rai-toolbox is spared the pixel box, which it does not have: its points are brought into it
before they are judged.

Several runs are made in each peer's own way: by torchattacks' MultiAttack, which goes on with what holds, foolbox's
`repeat` and ART's `num_random_init`, which attack all samples in each. rai-toolbox has no such way and is told to.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import count
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.timing import BATCHES, Once, Ratio, Timed, Value, interleaved, once
from sihg.robust.attacks import PGD, loop

art_attacks: Any = import_module("art.attacks.evasion")  # these have no types
art_classification: Any = import_module("art.estimators.classification")
foolbox: Any = import_module("foolbox")
rai_optim: Any = import_module("rai_toolbox.optim")
rai_perturbations: Any = import_module("rai_toolbox.perturbations")
torchattacks: Any = import_module("torchattacks")

warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # rai-toolbox's, in its own process

SEED = 0
STARTS = count(SEED)
PROBE, PROBES = 5, 5  # steps, and runs of them, by which a peer's best batch is found
BEST = ", batches of "  # in the name of a peer that has them

Attack = Callable[[], Tensor]  # gives which samples are broken


@dataclass(frozen=True)
class Case:
    """A model, samples, a radius, steps and runs."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float
    steps: int
    runs: int = 1
    seed: int = SEED  # of our starts

    @property
    def step(self) -> float:
        """The length of a step."""
        return 2.5 * self.eps / self.steps


def versions() -> dict[str, Value]:
    """Of the peers."""
    return {
        name: version(name) for name in ("torchattacks", "rai-toolbox", "foolbox", "adversarial-robustness-toolbox")
    }


def attack(name: str, case: Case, size: int | None = None) -> Attack:
    """Ours or a peer's, with so many samples at once; where nothing is said ours chooses, and a peer gets them all."""
    return of_ours(case, size) if name == "ours" else PEERS[name](case, size or len(case.x))


def warmed(name: str, case: Case, size: int | None = None) -> Attack:
    """The attack, after one step of it: the model that has come to this process may be a new one."""
    attack(name, replace(case, steps=1, runs=1), size)()
    return attack(name, case, size)


def timed(name: str, case: Case, size: int | None = None) -> Once:
    """Run and time the attack: which samples it breaks.

    Each time from new starts, as peers do it: from the same ones ours would meet the same numbers of rows again, for
    which torch has its kernels ready.
    """
    return once(warmed(name, replace(case, seed=next(STARTS)), size))


def fastest(name: str, case: Case) -> int:
    """The batch with which a peer is fastest, by the medians of some short runs, in turn."""
    sizes = sorted({min(size, len(case.x)) for size in BATCHES})
    calls = {str(size): attack(name, replace(case, steps=PROBE, runs=1), size) for size in sizes}
    found = interleaved(calls, PROBES)
    return min(sizes, key=lambda size: median(found[str(size)].cpu))


def ratios(found: dict[str, Timed]) -> tuple[dict[str, Ratio], dict[str, Ratio]]:
    """Each peer's time over ours: with all samples as one batch, and the least of that and in its best batches."""
    over = {name: times.over(found["ours"].first(len(times.wall)))[0] for name, times in found.items()}
    best = {name: min(over[other] for other in over if other.split(BEST)[0] == name) for name in PEERS}
    return {name: over[name] for name in PEERS}, best


def batched(call: Callable[[Tensor, Tensor], Tensor], case: Case, size: int) -> Attack:
    """A peer on one batch after the other."""
    return lambda: torch.cat([call(x, y) for x, y in zip(case.x.split(size), case.y.split(size), strict=True)])


def wrong(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which samples the model gets wrong."""
    with torch.no_grad():
        logits: Tensor = model(x)
        return logits.argmax(1) != y


def ours(case: Case) -> PGD:
    """Our attack."""
    return PGD(eps=case.eps, steps=case.steps, restarts=case.runs)


def of_ours(case: Case, size: int | None = None) -> Attack:
    """Ours, in chunks of its own choice or in others."""
    rows = size or loop.rows_per_chunk(case.x.shape[1:])

    def call() -> Tensor:
        with patch.object(loop, "rows_per_chunk", lambda _shape: rows):
            return ours(case).run(case.model, case.x, case.y, case.seed).broken

    return call


def of_torchattacks(case: Case, size: int) -> Attack:
    """torchattacks.PGD."""
    peer = torchattacks.PGD(case.model, eps=case.eps, alpha=case.step, steps=case.steps, random_start=True)
    if case.runs > 1:
        peer = torchattacks.MultiAttack([peer] * case.runs)
    return batched(lambda x, y: wrong(case.model, peer(x, y), y), case, size)


def of_rai(case: Case, size: int) -> Attack:
    """rai_toolbox's gradient_ascent with signed, projected steps."""
    start = partial(rai_perturbations.uniform_like_linf_n_ball_, epsilon=case.eps)

    def one_run(x: Tensor, y: Tensor) -> Tensor:
        found, _ = rai_perturbations.gradient_ascent(
            model=case.model,
            data=x,
            target=y,
            optimizer=rai_optim.LinfProjectedOptim,
            perturbation_model=rai_perturbations.AdditivePerturbation(x, start),
            steps=case.steps,
            epsilon=case.eps,
            lr=case.step,
        )
        return wrong(case.model, found.clamp(0, 1), y)

    return batched(lambda x, y: torch.stack([one_run(x, y) for _ in range(case.runs)]).any(0), case, size)


def of_foolbox(case: Case, size: int) -> Attack:
    """foolbox.attacks.LinfPGD, which tells what it broke."""
    model = foolbox.PyTorchModel(case.model, bounds=(0, 1), device="cpu")
    peer = foolbox.attacks.LinfPGD(abs_stepsize=case.step, steps=case.steps, random_start=True)
    if case.runs > 1:
        peer = peer.repeat(case.runs)
    return batched(lambda x, y: peer(model, x, y, epsilons=case.eps)[2], case, size)


def of_art(case: Case, size: int) -> Attack:
    """ART's ProjectedGradientDescentPyTorch, which makes batches itself."""
    classifier = art_classification.PyTorchClassifier(
        case.model, nn.CrossEntropyLoss(), tuple(case.x.shape[1:]), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    peer = art_attacks.ProjectedGradientDescentPyTorch(
        classifier,
        eps=case.eps,
        eps_step=case.step,
        max_iter=case.steps,
        num_random_init=case.runs,
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
