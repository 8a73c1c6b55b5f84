"""Check whether an evaluation can be trusted: the model before the attacks, then their outcomes (docs/checks.md)."""

import copy
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn

from sihg.robust.attacks.base import Natural
from sihg.robust.attacks.input_checks import HALF_PRECISION, load_rows
from sihg.robust.attacks.noise import Noise
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.random_models import ADVISED_EOT, ONCE, VOTES, Draws
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import attack_batch
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.data.samples import Samples, stratified_rows
from sihg.robust.evaluation.masking_module import suggest_bpda
from sihg.robust.evaluation.remedies import add_strength
from sihg.robust.gradients import (
    Loss,
    compute_logits,
    cross_entropy_per_row,
    is_missing_gradient,
    margins,
    misclassified,
    try_input_gradient,
)
from sihg.robust.threat import Ball
from sihg.store.schema import Check

MAX_PROBED = 64  # samples that the checks of the model look at
MIN_PROBED = 16
MIN_SAMPLES = 50  # fewer say too little
ROUNDING = 1e-5  # of the largest logit: by how much two passes may differ when sums are taken in another order
VANISHED = 1e-12  # a gradient whose largest entry is smaller counts as missing
MAX_VANISHED = 0.05  # share of samples whose gradient may be missing
MAX_BLACK_BOX_GAIN = 0.002  # of accuracy: what attacks without gradients may find in addition
CHANCE = 4  # samples: so few prove nothing, even in a small set
NO_GRADIENT = "the model gives no gradient"
SMALLEST_RADIUS = {
    "linf": 0.1 / 255,
    "l2": 0.05,
    "l1": 0.5,
}  # of a feature's range, for images: a smaller one has another unit
IMAGE_FEATURES = 784  # with fewer features, lengths are shorter


class ModelState:
    """The buffers, parameters and training flags of a model, which an evaluation must not change."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values = {name: value.detach().clone() for name, value in self._values().items()}
        self.training = {name: module.training for name, module in model.named_modules()}

    def check(self) -> Check:
        """Compare the model with its state at the beginning."""
        now, modules = self._values(), dict(self.model.named_modules())
        flags = [name for name, was in self.training.items() if name in modules and modules[name].training != was]
        changed = [f"{name or 'the model'}.training" for name in flags]
        changed += [name for name, value in self.values.items() if name in now and not _same(now[name], value)]
        message = f"the evaluation has changed {_first_of(changed)}: check the model's forward and your own attacks"
        return warn_if(bool(changed), "state", message, "error")

    def _values(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_buffers()), **dict(self.model.named_parameters())}


def warn_if(fires: bool, name: str, message: str, result: Literal["warning", "error"] = "warning") -> Check:
    """Return a check that warns with a message if it fires, and is fine otherwise."""
    return Check(name, result, message) if fires else Check(name, "fine")


def inspect_model(
    model: nn.Module,
    samples: Samples,
    ball: Ball,
    seed: int,
    *,
    attacked: bool = True,
    draws: Draws = ONCE,
    if_random: str = "",
) -> Iterator[Check]:
    """Check the model on a few samples; its gradients and the radius only if attacks follow.

    `if_random` is what to do about a random model, where the arguments eot and votes do not exist.
    """
    x, y = _probe(model, samples, seed)
    first, second = compute_logits(model, x), compute_logits(model, x)
    yield _check_precision(model, first)
    probabilities = bool((first >= 0).all()) and bool(((first.sum(1) - 1).abs() < 1e-3).all())
    message = "the outputs look like probabilities, which flatten the losses of attacks: leave out the softmax"
    yield warn_if(probabilities, "logits", message)
    if attacked:
        yield _check_unit(samples, ball)
    random = _differ(first, second)
    yield _check_repeatable(first, second, draws, if_random)
    if attacked:
        yield _check_zero_radius(model, x, y, first, ball, seed, random=random)
        yield _check_gradients(model, x, y, first, ball, seed)


def passes_differ(model: nn.Module, samples: Samples, seed: int) -> bool:
    """Return whether the model is random: two passes over a few samples differ by more than rounding."""
    x, _ = _probe(model, samples, seed)
    return _differ(compute_logits(model, x), compute_logits(model, x))


def inspect_outcomes(
    samples: Samples, total: int, plans: Mapping[str, Plan], outcomes: list[Outcome]
) -> Iterator[Check]:
    """Check what the attacks found."""
    yield check_full_split(len(samples), total)
    yield from _check_proofs(outcomes)
    outcomes = [outcome for outcome in outcomes if not outcome.proof]
    plans = {outcome.attack: plans[outcome.attack] for outcome in outcomes}
    if not outcomes:
        return
    stages = [stage for outcome in outcomes for stage in (outcome, *outcome.stages)]
    natural = next((stage for stage in stages if stage.attack == "natural"), None)
    yield _check_above_chance(samples, natural)
    yield _check_below_natural(plans, outcomes, natural)
    yield _check_black_box(plans, outcomes)


def _probe(model: nn.Module, samples: Samples, seed: int) -> tuple[Tensor, Tensor]:
    count = min(MAX_PROBED, max(MIN_PROBED, len(samples) // MAX_PROBED))
    return load_rows(model, samples, stratified_rows(samples, count, seed))


def _differ(first: Tensor, second: Tensor) -> bool:
    return not float((first - second).abs().max()) <= ROUNDING * float(first.abs().max())


def _check_repeatable(first: Tensor, second: Tensor, draws: Draws, remedy: str) -> Check:
    """Check that a random model is attacked and judged as one."""
    advice = [] if draws.eot > 1 else [f"average gradients over draws, eot={ADVISED_EOT}"]
    advice += [] if draws.votes > 1 else [f"let several draws judge, votes={VOTES}"]
    apart = float((first - second).abs().max())
    message = f"the model is random, two passes differ by {apart:.2g}: {remedy or ', and '.join(advice)}"
    return warn_if(_differ(first, second) and bool(advice), "repeatable", message)


def _check_precision(model: nn.Module, logits: Tensor) -> Check:
    half = [name for name, value in model.named_parameters() if value.dtype in HALF_PRECISION]
    if not half and logits.dtype in HALF_PRECISION:
        message = f"the outputs are {logits.dtype}, whose rounding hides gradients: take the cast out of its forward"
        return Check("precision", "warning", message)
    message = f"{_first_of(half)} is in half precision, whose rounding hides gradients: evaluate model.float()"
    return warn_if(bool(half), "precision", message)


def _check_unit(samples: Samples, ball: Ball) -> Check:
    widths = ball.widths(samples.probe())
    moving = widths[widths > 0]
    if ball.eps == 0 or len(samples) < MIN_SAMPLES or not len(moving):
        return Check("unit", "not run", "needs a radius, and more than a few samples that differ")
    features, width = moving.numel(), float(moving.median())  # the median, since one feature may be of another kind
    longest = ball.longest(features)
    large = ball.eps > float(moving.max()) * longest
    small = ball.eps < SMALLEST_RADIUS[ball.norm] * width * min(1.0, longest / ball.longest(IMAGE_FEATURES))
    about = f"an {ball.norm} ball in {features} features with a range of {width:g}"
    message = f"eps {ball.eps:g} is {'large' if large else 'small'} for {about}: give it in the data's unit and norm"
    return warn_if(large or small, "unit", message)


def _check_zero_radius(
    model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, ball: Ball, seed: int, *, random: bool
) -> Check:
    if random:
        return Check("eps 0", "not run", "the model is random")
    try:
        attack = PGD(eps=0.0, steps=1, norm=ball.norm, bounds=ball.bounds)
        attacked = attack_batch(attack, model, x, y, seed).broken
    except RuntimeError as error:
        if not is_missing_gradient(error):
            raise
        return Check("eps 0", "not run", NO_GRADIENT)
    natural = misclassified(logits, y)
    message = (
        f"with eps 0 an attack breaks {int(attacked.sum())} of {len(x)} samples, without attack {int(natural.sum())} "
        "are wrong: the model gives other logits for equal points, check its forward"
    )
    return warn_if(not torch.equal(natural, attacked), "eps 0", message, "error")


def _check_gradients(model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, ball: Ball, seed: int) -> Check:
    right = logits.argmax(1) == y
    if not bool(right.any()):
        return Check("gradients", "not run", "no sample is classified correctly")
    vanished = _vanished_share(model, x[right], y[right], cross_entropy_per_row)
    if vanished <= MAX_VANISHED:
        return Check("gradients", "fine")
    try:
        still = _vanished_share(copy.deepcopy(model).double(), x[right].double(), y[right], margins)
    except Exception as error:  # a model may raise anything when it is copied or converted
        why = (str(error) or repr(error)).split("\n")[0]
        more = f", and the model cannot be repeated in float64 ({why}): add square"
    else:
        more = "; the margin in float64 has one: the loss is saturated, trust apgd-t and fab-t, which use logits"
        if still > MAX_VANISHED:
            advice = suggest_bpda(model, x[right], ball, seed) or "trust square and transfer"
            more = f"; nor has the margin in float64 at {still:.0%}: gradients are masked, {advice}"
    message = f"the cross-entropy has no gradient at {vanished:.0%} of the samples{more}"
    return Check("gradients", "warning", message)


def _vanished_share(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> float:
    g = try_input_gradient(model, x, y, loss)
    return 1.0 if g is None else float((~(g.flatten(1).abs().amax(1) > VANISHED)).double().mean())


def check_full_split(n: int, total: int) -> Check:
    """Check that all samples of the split were evaluated."""
    message = "samples were evaluated: such a figure is for orientation, leave out --samples to publish it"
    return warn_if(n != total, "all samples", f"{n} of {total} {message}")


def _check_proofs(outcomes: list[Outcome]) -> Iterator[Check]:
    proofs = [outcome for outcome in outcomes if outcome.proof]
    attacks = [outcome for outcome in outcomes if not outcome.proof]
    for proof, attack in product(proofs, attacks):
        both = int((~proof.broken & attack.broken).sum())
        message = (
            f"{attack.attack} breaks {both} samples that {proof.attack} proves robust: the forward does more than its "
            "layers say, or one of the two is wrong; trust the attack, and report the layers"
        )
        yield warn_if(both > 0, f"proof: {attack.attack}", message, "error")


def _check_above_chance(samples: Samples, natural: Outcome | None) -> Check:
    constant = float(samples.y.bincount().max()) / len(samples)
    if natural is None or len(samples) < MIN_SAMPLES or constant == 1:
        why = "natural is not among the attacks" if natural is None else f"needs {MIN_SAMPLES} samples, of two classes"
        return Check("above chance", "not run", why)
    message = (
        f"the natural accuracy is {natural.accuracy:.2%}, no more than that of always the same class, {constant:.2%}: "
        "check the weights, the scale of the samples and their labels"
    )
    return warn_if(natural.accuracy <= constant, "above chance", message)


def _check_below_natural(plans: Mapping[str, Plan], outcomes: list[Outcome], natural: Outcome | None) -> Check:
    if natural is None:
        return Check("below natural", "not run", "natural is not among the attacks")
    for outcome in outcomes:
        random = all(isinstance(attack, Noise | Transfer) for attack in plans[outcome.attack].values())
        if not random and int(natural.broken.sum()) - int(outcome.broken.sum()) > CHANCE:
            message = (
                f"{outcome.attack} leaves {outcome.accuracy:.2%}, more than the natural {natural.accuracy:.2%}: it "
                "makes the model better, check its loss and its labels"
            )
            return Check("below natural", "warning", message)
    return Check("below natural", "fine")


def _check_black_box(plans: Mapping[str, Plan], outcomes: list[Outcome]) -> Check:
    """Check that attacks without gradients do not break samples that attacks with gradients miss."""
    black, white, natural = [], [], torch.zeros_like(outcomes[0].broken)
    stages = [(stage, plans[outcome.attack]) for outcome in outcomes for stage in (outcome.stages or (outcome,))]
    for stage, plan in stages:
        found, attack = stage.attacked & stage.broken, plan[stage.attack]  # in a sequence: what this stage broke itself
        if isinstance(attack, Natural):
            natural |= found
        elif attack.uses_gradients is False:
            black.append(found)
        elif attack.uses_gradients and attack.steps_per_run != 1:
            white.append(found)
    if not black or not white:
        why = "needs an attack of several gradient steps and one of none, as in standard"
        return Check("black box", "not run", why)
    gain = int((torch.stack(black).any(0) & ~torch.stack(white).any(0) & ~natural).sum())
    message = (
        f"attacks without gradients break another {gain} samples, {gain / len(natural):.2%}, that those with gradients "
        f"miss: gradients are masked, or these attacks are too weak; {add_strength(plans)}"
    )
    return warn_if(gain > CHANCE // 2 and gain > MAX_BLACK_BOX_GAIN * len(natural), "black box", message)


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()))


def _first_of(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)
