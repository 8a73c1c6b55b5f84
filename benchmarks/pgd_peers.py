"""PGD by our code, torchattacks, rai-toolbox, foolbox and ART, as callables that can be timed.

All libraries get the same model, samples and steps, start at random, and run in separate processes
(`separate_processes.py` says why). They are timed until it is known which samples are broken. torchattacks, rai-toolbox
and ART do not say this, so one forward pass is added for them. rai-toolbox has no pixel bounds; its points are clamped
before that pass.

Restarts use what each peer offers: torchattacks' MultiAttack, which continues with the unbroken samples; foolbox's
`repeat` and ART's `num_random_init`, which attack all samples again. rai-toolbox has no restarts, so a loop makes them.
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

from benchmarks.timing import PEER_BATCH_SIZES, Measurement, Ratio, Timings, Value, time_interleaved, time_once
from sihg.robust.attacks import PGD, runner
from sihg.robust.attacks.chunk_size import rows_per_chunk

art_attacks: Any = import_module("art.attacks.evasion")  # all of these are untyped
art_classification: Any = import_module("art.estimators.classification")
foolbox: Any = import_module("foolbox")
rai_optim: Any = import_module("rai_toolbox.optim")
rai_perturbations: Any = import_module("rai_toolbox.perturbations")
torchattacks: Any = import_module("torchattacks")

warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # by rai-toolbox, in its own process

SEED = 0
START_SEEDS = count(SEED)
PROBE_STEPS, PROBE_REPETITIONS = 5, 5  # of the short runs that find a peer's best batch size
BEST_BATCHES = ", batches of "  # part of the name of a peer that runs in its best batch size

Attack = Callable[[], Tensor]  # returns which samples are broken


@dataclass(frozen=True)
class Case:
    """What is attacked, and how: model, samples, radius, steps and restarts."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float
    steps: int
    restarts: int = 1
    seed: int = SEED  # of our random starts

    @property
    def step_size(self) -> float:
        """Return the step size."""
        return 2.5 * self.eps / self.steps


def versions() -> dict[str, Value]:
    """Return the versions of the peers."""
    return {
        name: version(name) for name in ("torchattacks", "rai-toolbox", "foolbox", "adversarial-robustness-toolbox")
    }


def make_attack(name: str, case: Case, size: int | None = None) -> Attack:
    """Return our attack or a peer's with batches of `size`; default: our own choice, all samples for a peer."""
    return ours(case, size) if name == "ours" else PEERS[name](case, size or len(case.x))


def make_warm_attack(name: str, case: Case, size: int | None = None) -> Attack:
    """Return the attack after one warm-up step: the model may be new in this process."""
    make_attack(name, replace(case, steps=1, restarts=1), size)()
    return make_attack(name, case, size)


def time_attack(name: str, case: Case, size: int | None = None) -> Measurement:
    """Run and time the attack; its value is which samples are broken.

    Every call uses new random starts, as peers do. With equal starts our attack would meet the same batch sizes again,
    for which torch has already prepared its kernels.
    """
    return time_once(make_warm_attack(name, replace(case, seed=next(START_SEEDS)), size))


def find_best_batch_size(name: str, case: Case) -> int:
    """Return the batch size with which a peer is fastest, by the medians of short interleaved runs."""
    sizes = sorted({min(size, len(case.x)) for size in PEER_BATCH_SIZES})
    calls = {str(size): make_attack(name, replace(case, steps=PROBE_STEPS, restarts=1), size) for size in sizes}
    timings = time_interleaved(calls, PROBE_REPETITIONS)
    return min(sizes, key=lambda size: median(timings[str(size)].cpu))


def ratios_to_ours(timings: dict[str, Timings]) -> tuple[dict[str, Ratio], dict[str, Ratio]]:
    """Divide each peer's time by ours: all samples as one batch, and the smaller of this and its best batch size."""
    over = {name: times.over(timings["ours"].first(len(times.wall)))[0] for name, times in timings.items()}
    best = {name: min(over[other] for other in over if other.split(BEST_BATCHES)[0] == name) for name in PEERS}
    return {name: over[name] for name in PEERS}, best


def in_batches(call: Callable[[Tensor, Tensor], Tensor], case: Case, size: int) -> Attack:
    """Return an attack that calls a peer on one batch after the other."""
    return lambda: torch.cat([call(x, y) for x, y in zip(case.x.split(size), case.y.split(size), strict=True)])


def misclassified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return which samples the model misclassifies."""
    with torch.no_grad():
        logits: Tensor = model(x)
        return logits.argmax(1) != y


def our_pgd(case: Case) -> PGD:
    """Return our PGD for a case."""
    return PGD(eps=case.eps, steps=case.steps, restarts=case.restarts)


def ours(case: Case, size: int | None = None) -> Attack:
    """Return our attack, in chunks of its own choice or of `size` rows."""
    rows = size or rows_per_chunk(case.x.shape[1:])

    def call() -> Tensor:
        with patch.object(runner, "rows_per_chunk", lambda _shape: rows):
            return our_pgd(case).run(case.model, case.x, case.y, case.seed).broken

    return call


def torchattacks_pgd(case: Case, size: int) -> Attack:
    """Return torchattacks.PGD."""
    peer = torchattacks.PGD(case.model, eps=case.eps, alpha=case.step_size, steps=case.steps, random_start=True)
    if case.restarts > 1:
        peer = torchattacks.MultiAttack([peer] * case.restarts)
    return in_batches(lambda x, y: misclassified(case.model, peer(x, y), y), case, size)


def rai_pgd(case: Case, size: int) -> Attack:
    """Return rai_toolbox's gradient_ascent with signed, projected steps."""
    start = partial(rai_perturbations.uniform_like_linf_n_ball_, epsilon=case.eps)

    def attack_once(x: Tensor, y: Tensor) -> Tensor:
        points, _ = rai_perturbations.gradient_ascent(
            model=case.model,
            data=x,
            target=y,
            optimizer=rai_optim.LinfProjectedOptim,
            perturbation_model=rai_perturbations.AdditivePerturbation(x, start),
            steps=case.steps,
            epsilon=case.eps,
            lr=case.step_size,
        )
        return misclassified(case.model, points.clamp(0, 1), y)

    return in_batches(lambda x, y: torch.stack([attack_once(x, y) for _ in range(case.restarts)]).any(0), case, size)


def foolbox_pgd(case: Case, size: int) -> Attack:
    """Return foolbox.attacks.LinfPGD, which says which samples it broke."""
    model = foolbox.PyTorchModel(case.model, bounds=(0, 1), device="cpu")
    peer = foolbox.attacks.LinfPGD(abs_stepsize=case.step_size, steps=case.steps, random_start=True)
    if case.restarts > 1:
        peer = peer.repeat(case.restarts)
    return in_batches(lambda x, y: peer(model, x, y, epsilons=case.eps)[2], case, size)


def art_pgd(case: Case, size: int) -> Attack:
    """Return ART's ProjectedGradientDescentPyTorch, which makes batches itself."""
    classifier = art_classification.PyTorchClassifier(
        case.model, nn.CrossEntropyLoss(), tuple(case.x.shape[1:]), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    peer = art_attacks.ProjectedGradientDescentPyTorch(
        classifier,
        eps=case.eps,
        eps_step=case.step_size,
        max_iter=case.steps,
        num_random_init=case.restarts,
        batch_size=size,
        verbose=False,
    )
    x, y = case.x.numpy(), case.y.numpy()
    return lambda: misclassified(case.model, torch.from_numpy(peer.generate(x, y)), case.y)


PEERS: dict[str, Callable[[Case, int], Attack]] = {
    "torchattacks": torchattacks_pgd,
    "rai-toolbox": rai_pgd,
    "foolbox": foolbox_pgd,
    "ART": art_pgd,
}
