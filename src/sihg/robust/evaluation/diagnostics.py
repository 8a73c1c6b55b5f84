"""Check whether an evaluation can be trusted: the model before the attacks, then their outcomes (docs/checks.md)."""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor, nn

from sihg.robust.attacks.base import margins, misclassified
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.noise import Noise
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.preflight import HALF_PRECISION
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import Outcome, device_of, is_missing_gradient
from sihg.robust.attacks.square import Square
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.attacks.user_function import FunctionAttack
from sihg.robust.data.samples import Samples, stratified_rows
from sihg.robust.gradients import Loss, cross_entropy_per_row, evaluation_mode
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
SMALLEST_RADIUS = {"linf": 0.1 / 255, "l2": 0.05}  # of a feature's range, for images: a smaller one has another unit
IMAGE_NORM = {"linf": 1.0, "l2": 28.0}  # of 784 ones: with fewer features, lengths are shorter


@dataclass(eq=False)
class ModelState:
    """The buffers, parameters and training flags of a model, which an evaluation must not change."""

    model: nn.Module
    values: dict[str, Tensor] = field(init=False)
    training: dict[str, bool] = field(init=False)

    def __post_init__(self) -> None:
        self.values = {name: value.detach().clone() for name, value in self._values().items()}
        self.training = {name: module.training for name, module in self.model.named_modules()}

    def check(self) -> Check:
        """Compare the model with its state at the beginning."""
        now = self._values()
        changed = [
            f"{name or 'the model'}.training"
            for name, module in self.model.named_modules()
            if module.training != self.training.get(name, module.training)
        ]
        changed += [name for name, value in self.values.items() if name in now and not _same(now[name], value)]
        if not changed:
            return Check("state", "fine")
        return Check(
            "state",
            "error",
            f"the evaluation has changed {changed[0]}{_more(changed)}: a pass in evaluation mode must not change the "
            "model, check its forward and your own attacks",
        )

    def _values(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_buffers()), **dict(self.model.named_parameters())}


def inspect_model(
    model: nn.Module, samples: Samples, ball: Ball, seed: int, *, attacked: bool = True
) -> Iterator[Check]:
    """Check the model on a few samples; its gradients and the radius only if attacks follow."""
    count = min(MAX_PROBED, max(MIN_PROBED, len(samples) // MAX_PROBED))
    rows, device = stratified_rows(samples, count, seed), device_of(model)
    x, y = samples.floats(rows).to(device), samples.y[rows].to(device)
    with evaluation_mode(model), torch.no_grad():
        first, second = model(x), model(x)
    yield _check_precision(model, first)
    yield _check_logits(first)
    if attacked:
        yield _check_unit(samples, ball)
    repeatable = _check_repeatable(first, second)
    yield repeatable
    if attacked:
        yield _check_zero_radius(model, x, y, first, ball, seed, random=repeatable.result != "fine")
        yield _check_gradients(model, x, y, first)


def inspect_outcomes(
    samples: Samples,
    total: int,
    plans: Mapping[str, Plan],
    outcomes: list[Outcome],
    trained_with: str | None,
) -> Iterator[Check]:
    """Check what the attacks found."""
    yield check_full_split(len(samples), total)
    yield from _check_proofs(outcomes)
    outcomes = [outcome for outcome in outcomes if not outcome.proof]
    plans = {outcome.attack: plans[outcome.attack] for outcome in outcomes}
    if not outcomes:
        return
    yield _check_above_chance(samples, outcomes)
    yield _check_below_natural(plans, outcomes)
    yield check_other_attacks(plans, trained_with)
    yield _check_black_box(plans, outcomes)


def _check_unit(samples: Samples, ball: Ball) -> Check:
    widths = ball.widths(samples.x)
    moving = widths[widths > 0]
    if ball.eps == 0 or len(samples) < MIN_SAMPLES or not len(moving):
        return Check("unit", "not run", "needs a radius, and more than a few samples that differ")
    features, width = moving.numel(), float(moving.median())  # the median, since one feature may be of another kind
    longest = 1.0 if ball.norm == "linf" else math.sqrt(features)
    if ball.eps > float(moving.max()) * longest:
        what = "large"
    elif ball.eps < SMALLEST_RADIUS[ball.norm] * width * min(1.0, longest / IMAGE_NORM[ball.norm]):
        what = "small"
    else:
        return Check("unit", "fine")
    return Check(
        "unit",
        "warning",
        f"eps {ball.eps:g} is {what} for an {ball.norm} ball in {features} features with a range of {width:g}: if it "
        "was meant in another unit or norm, give it in the data's",
    )


def _check_precision(model: nn.Module, logits: Tensor) -> Check:
    half = [name for name, value in model.named_parameters() if value.dtype in HALF_PRECISION]
    if not half and logits.dtype in HALF_PRECISION:
        return Check(
            "precision",
            "warning",
            f"the outputs are {logits.dtype}, whose rounding hides gradients: take autocast, or the cast, out of its "
            "forward",
        )
    if not half:
        return Check("precision", "fine")
    return Check(
        "precision",
        "warning",
        f"{half[0]}{_more(half)} is in half precision, whose rounding hides gradients: evaluate model.float()",
    )


def _check_logits(logits: Tensor) -> Check:
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
        return Check(
            "logits",
            "warning",
            "the model's outputs look like probabilities, which flatten the losses of attacks: leave out its softmax",
        )
    return Check("logits", "fine")


def _check_repeatable(first: Tensor, second: Tensor) -> Check:
    apart = float((first - second).abs().max())
    if apart <= ROUNDING * float(first.abs().max()):
        return Check("repeatable", "fine")
    return Check(
        "repeatable",
        "warning",
        f"two passes over the same samples differ by up to {apart:.2g}: the model is "
        "random, so attacks must average over its randomness; evaluate a model that averages several passes",
    )


def _check_zero_radius(
    model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, ball: Ball, seed: int, *, random: bool
) -> Check:
    if random:
        return Check("eps 0", "not run", "the model is random")
    try:
        attacked = PGD(eps=0.0, steps=1, norm=ball.norm, bounds=ball.bounds).run(model, x, y, seed).broken
    except RuntimeError as error:
        if not is_missing_gradient(error):
            raise
        return Check("eps 0", "not run", NO_GRADIENT)
    natural = misclassified(logits, y)
    if torch.equal(natural, attacked):
        return Check("eps 0", "fine")
    return Check(
        "eps 0",
        "error",
        f"with eps 0 an attack breaks {int(attacked.sum())} of {len(x)} samples, without attack {int(natural.sum())} "
        "are misclassified: the model gives other logits for equal points, check its forward",
    )


def _check_gradients(model: nn.Module, x: Tensor, y: Tensor, logits: Tensor) -> Check:
    right = logits.argmax(1) == y
    if not bool(right.any()):
        return Check("gradients", "not run", "no sample is classified correctly")
    vanished = _vanished_share(model, x[right], y[right], cross_entropy_per_row)
    if vanished <= MAX_VANISHED:
        return Check("gradients", "fine")
    what = f"the cross-entropy has no gradient at {vanished:.0%} of the samples"
    try:
        still = _vanished_share(copy.deepcopy(model).double(), x[right].double(), y[right], margins)
    except Exception as error:  # a model may raise anything when it is copied or converted
        why = (str(error) or repr(error)).splitlines()[0]
        return Check("gradients", "warning", f"{what}, and the model cannot be repeated in float64 ({why}): add square")
    if still > MAX_VANISHED:
        remedy = (
            f"the margin in float64 has none at {still:.0%} either: gradients are masked, trust square and transfer"
        )
    else:
        remedy = "the margin in float64 has one: the loss is saturated, trust apgd-t and fab-t, which use logits"
    return Check("gradients", "warning", f"{what}; {remedy}")


def _vanished_share(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> float:
    g = try_input_gradient(model, x, y, loss)
    if g is None:
        return 1.0
    return float((~(g.flatten(1).abs().amax(1) > VANISHED)).double().mean())


def try_input_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor | None:
    """Return the gradient of the summed loss in the input; None if the model cannot be differentiated."""
    point = x.detach().requires_grad_()
    try:
        with evaluation_mode(model), torch.enable_grad():
            return torch.autograd.grad(loss(model(point), y).sum(), point)[0]
    except RuntimeError as error:
        if not is_missing_gradient(error):
            raise
        return None


def check_full_split(n: int, total: int) -> Check:
    """Check that all samples of the split were evaluated."""
    if n == total:
        return Check("all samples", "fine")
    return Check(
        "all samples",
        "warning",
        f"{n} of {total} samples were evaluated: such a figure is for orientation, leave out --samples to publish it",
    )


def _check_proofs(outcomes: list[Outcome]) -> Iterator[Check]:
    proofs = [outcome for outcome in outcomes if outcome.proof]
    attacks = [outcome for outcome in outcomes if not outcome.proof]
    for proof, attack in product(proofs, attacks):
        both = int((~proof.broken & attack.broken).sum())
        yield Check(
            f"proof: {attack.attack}",
            "error" if both else "fine",
            f"{attack.attack} breaks {both} samples that {proof.attack} proves robust: the model's forward does more "
            "than its layers say, or one of the two is wrong; trust the attack, and report the layers"
            if both
            else "",
        )


def _check_above_chance(samples: Samples, outcomes: list[Outcome]) -> Check:
    stages = [stage for outcome in outcomes for stage in (outcome.stages or (outcome,))]
    natural = next((stage for stage in stages if stage.attack == "natural"), None)
    constant = float(samples.y.bincount().max()) / len(samples)
    if natural is None or len(samples) < MIN_SAMPLES or constant == 1:
        why = "natural is not among the attacks" if natural is None else f"needs {MIN_SAMPLES} samples, of two classes"
        return Check("above chance", "not run", why)
    if natural.accuracy > constant:
        return Check("above chance", "fine")
    return Check(
        "above chance",
        "warning",
        f"the natural accuracy is {natural.accuracy:.2%}, no more than that of always the same class, "
        f"{constant:.2%}: check the weights, the scale of the samples and their labels",
    )


def _check_below_natural(plans: Mapping[str, Plan], outcomes: list[Outcome]) -> Check:
    stages = [*outcomes, *(stage for outcome in outcomes for stage in outcome.stages)]
    natural = next((stage for stage in stages if stage.attack == "natural"), None)
    if natural is None:
        return Check("below natural", "not run", "natural is not among the attacks")
    above = [
        outcome
        for outcome in outcomes
        if not all(isinstance(attack, Noise | Transfer) for attack in plans[outcome.attack].values())
        and int(natural.broken.sum()) - int(outcome.broken.sum()) > CHANCE
    ]
    if not above:
        return Check("below natural", "fine")
    return Check(
        "below natural",
        "warning",
        f"{above[0].attack} leaves {above[0].accuracy:.2%}, more than the natural {natural.accuracy:.2%}: it makes the "
        "model better, check its loss and its labels",
    )


def check_other_attacks(plans: Mapping[str, Plan], trained_with: str | None) -> Check:
    """Check that there is another kind of attack than the one the model was trained against."""
    attacks = [a for plan in plans.values() for a in plan.values() if not isinstance(a, Natural | Noise | Transfer)]
    if trained_with in (None, "natural", "ibp") or not attacks:
        why = "trained_with is not given" if trained_with is None else "it was not trained against an attack"
        return Check("other attacks", "not run", why if attacks else "there is no attack")
    if all(isinstance(attack, PGD) for attack in attacks):
        return Check(
            "other attacks",
            "warning",
            f"{trained_with} trains against projected gradient steps, and only these were used: add standard",
        )
    return Check("other attacks", "fine")


def _check_black_box(plans: Mapping[str, Plan], outcomes: list[Outcome]) -> Check:
    """Check that attacks without gradients do not break samples that attacks with gradients miss."""
    black, white, natural = [], [], torch.zeros_like(outcomes[0].broken)
    stages = [(stage, plans[outcome.attack]) for outcome in outcomes for stage in (outcome.stages or (outcome,))]
    for stage, plan in stages:
        found, attack = stage.attacked & stage.broken, plan[stage.attack]  # in a sequence: what this stage broke itself
        if isinstance(attack, Natural):
            natural |= found
        elif isinstance(attack, Square | Noise | Transfer):
            black.append(found)
        elif not isinstance(attack, FunctionAttack) and not (isinstance(attack, PGD) and attack.steps == 1):
            white.append(found)
    if not black or not white:
        return Check(
            "black box", "not run", "needs an attack of several gradient steps and one of none, as in standard"
        )
    gain = int((torch.stack(black).any(0) & ~torch.stack(white).any(0) & ~natural).sum())
    if gain <= CHANCE // 2 or gain <= MAX_BLACK_BOX_GAIN * len(natural):
        return Check("black box", "fine")
    return Check(
        "black box",
        "warning",
        f"attacks without gradients break another {gain} samples, {gain / len(natural):.2%}, that those with gradients "
        "do not: gradients are masked, or these attacks are too weak, so the true accuracy may be even lower; add "
        "standard, restarts and queries",
    )


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()))


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
