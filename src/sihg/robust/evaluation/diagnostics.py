"""Reasons to doubt an evaluation: checks of the model before it is attacked, and of what the attacks found.

Those that attack again are in `again.py`.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor, nn

from sihg.robust.attacks.base import margins, misclassified
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.noise import Noise
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import Outcome, device_of, is_missing_gradient
from sihg.robust.attacks.square import Square
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.attacks.user_function import FunctionAttack
from sihg.robust.data.samples import Samples, stratified_rows
from sihg.robust.gradients import Loss, cross_entropy_per_row, evaluation_mode, input_gradient
from sihg.robust.threat import Ball

FEW = 64  # samples that are looked at, at most
LOOKED_AT = 16  # samples at least
LEAST = 50  # samples, fewer of which say too little
ROUNDING = 1e-5  # of the largest logit: by how much two passes may differ where sums are not always in one order
VANISHED, OFTEN = 1e-12, 0.05  # the largest entry of a gradient that is none, and the share of rows with one
BLACK_BOX_GAIN = 0.002  # of accuracy: what a black-box attack may find beside
CHANCE = 4  # samples: so few prove nothing, whatever share of a small set they are
BLIND = "the model gives no gradient"
HALF = (torch.float16, torch.bfloat16)
SMALL = {"linf": 0.1 / 255, "l2": 0.05}  # of a feature's range, of images: a radius below may be in another unit
IMAGE = {"linf": 1.0, "l2": 28.0}  # the norm of 784 ones: of fewer features, lengths are shorter


@dataclass(frozen=True)
class Check:
    """A check: `fine`, a `warning`, an `error`, or `not run`; and why."""

    name: str
    result: str
    message: str = ""


@dataclass(eq=False)
class State:
    """What an attack must leave as it is: buffers, parameters, training flags."""

    model: nn.Module
    values: dict[str, Tensor] = field(init=False)
    training: dict[str, bool] = field(init=False)

    def __post_init__(self) -> None:
        self.values = {name: value.detach().clone() for name, value in self._values().items()}
        self.training = {name: module.training for name, module in self.model.named_modules()}

    def check(self) -> Check:
        """What was changed since."""
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
            f"the evaluation has changed {changed[0]}{_more(changed)}: a pass in evaluation mode must leave the model "
            "as it is, look at its forward and at attacks of your own",
        )

    def _values(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_buffers()), **dict(self.model.named_parameters())}


def before(model: nn.Module, samples: Samples, ball: Ball, seed: int, *, attacked: bool = True) -> Iterator[Check]:
    """What can be seen of the model itself, from a few samples; of gradients only where attacks follow."""
    rows, device = stratified_rows(samples, min(FEW, max(LOOKED_AT, len(samples) // FEW)), seed), device_of(model)
    x, y = samples.floats(rows).to(device), samples.y[rows].to(device)
    with evaluation_mode(model), torch.no_grad():
        first, second = model(x), model(x)
    yield _precision(model, first)
    yield _probabilities(first)
    if attacked:
        yield _unit(samples, ball)
    repeatable = _repeatable(first, second)
    yield repeatable
    if attacked:
        yield _zero_radius(model, x, y, first, ball, seed, random=repeatable.result != "fine")
        yield _gradients(model, x, y, first)


def after(
    samples: Samples,
    total: int,
    plans: Mapping[str, Plan],
    outcomes: list[Outcome],
    trained_with: str | None,
) -> Iterator[Check]:
    """What can be seen of the outcomes."""
    yield whole(len(samples), total)
    yield from _proof(outcomes)
    outcomes = [one for one in outcomes if not one.proof]
    plans = {one.attack: plans[one.attack] for one in outcomes}
    if not outcomes:
        return
    yield _above_chance(samples, outcomes)
    yield _below_natural(plans, outcomes)
    yield other_attack(plans, trained_with)
    yield _black_box(plans, outcomes)


def counted(results: Iterable[str]) -> str:
    """How many checks came to which result, in words."""
    counts = Counter(results)
    kinds = [f"{counts[kind]} {kind}{'' if counts[kind] == 1 else 's'}" for kind in ("warning", "error")]
    return f"{counts['fine']} fine, {', '.join(kinds)}, {counts['not run']} not run"


def _unit(samples: Samples, ball: Ball) -> Check:
    widths = ball.widths(samples.x)
    moving = widths[widths > 0]
    if ball.eps == 0 or len(samples) < LEAST or not len(moving):
        return Check("unit", "not run", "needs a radius, and more than a few samples that differ")
    features, width = moving.numel(), float(moving.median())  # of most features: one may be of another kind
    long = 1.0 if ball.norm == "linf" else math.sqrt(features)
    if ball.eps > float(moving.max()) * long:
        what = "large"
    elif ball.eps < SMALL[ball.norm] * width * min(1.0, long / IMAGE[ball.norm]):
        what = "small"
    else:
        return Check("unit", "fine")
    return Check(
        "unit",
        "warning",
        f"eps {ball.eps:g} is {what} for an {ball.norm} ball in {features} features with a range of {width:g}: if it "
        "was meant in another unit or norm, give it in the data's",
    )


def _precision(model: nn.Module, logits: Tensor) -> Check:
    half = [name for name, value in model.named_parameters() if value.dtype in HALF]
    if not half and logits.dtype in HALF:
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


def _probabilities(logits: Tensor) -> Check:
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
        return Check(
            "logits",
            "warning",
            "the model's outputs look like probabilities, which flatten the losses of attacks: leave out its softmax",
        )
    return Check("logits", "fine")


def _repeatable(first: Tensor, second: Tensor) -> Check:
    apart = float((first - second).abs().max())
    if apart <= ROUNDING * float(first.abs().max()):
        return Check("repeatable", "fine")
    return Check(
        "repeatable",
        "warning",
        f"two passes over the same samples differ by up to {apart:.2g}: the model is "
        "random, so attacks must average over its randomness; evaluate a model that averages several passes",
    )


def _zero_radius(
    model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, ball: Ball, seed: int, *, random: bool
) -> Check:
    if random:
        return Check("eps 0", "not run", "the model is random")
    try:
        attacked = PGD(eps=0.0, steps=1, norm=ball.norm, bounds=ball.bounds).run(model, x, y, seed).broken
    except RuntimeError as error:
        if not is_missing_gradient(error):
            raise
        return Check("eps 0", "not run", BLIND)
    natural = misclassified(logits, y)
    if torch.equal(natural, attacked):
        return Check("eps 0", "fine")
    return Check(
        "eps 0",
        "error",
        f"with eps 0 an attack breaks {int(attacked.sum())} of {len(x)} samples, without attack {int(natural.sum())} "
        "are misclassified: the model does not treat equal points alike, look at its forward",
    )


def _gradients(model: nn.Module, x: Tensor, y: Tensor, logits: Tensor) -> Check:
    right = logits.argmax(1) == y
    if not bool(right.any()):
        return Check("gradients", "not run", "no sample is classified correctly")
    gone = _vanished(model, x[right], y[right], cross_entropy_per_row)
    if gone <= OFTEN:
        return Check("gradients", "fine")
    what = f"the cross-entropy has no gradient at {gone:.0%} of the samples"
    try:
        still = _vanished(copy.deepcopy(model).double(), x[right].double(), y[right], margins)
    except Exception as error:  # whatever a model of somebody's does when it is copied or made double
        why = (str(error) or repr(error)).splitlines()[0]
        return Check("gradients", "warning", f"{what}, and the model cannot be repeated in float64 ({why}): add square")
    if still > OFTEN:
        remedy = (
            f"the margin in float64 has none at {still:.0%} either: gradients are masked, trust square and transfer"
        )
    else:
        remedy = "the margin in float64 has one: the loss is saturated, trust apgd-t and fab-t, which use logits"
    return Check("gradients", "warning", f"{what}; {remedy}")


def _vanished(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> float:
    """The share of samples at which the loss has no gradient."""
    g = slope_of(model, x, y, loss)
    if g is None:
        return 1.0
    return float((~(g.flatten(1).abs().amax(1) > VANISHED)).double().mean())


def slope_of(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor | None:
    """The gradient in the input; None where the model gives nothing to differentiate."""
    with evaluation_mode(model):
        try:
            return input_gradient(model, x, y, lambda logits, y: loss(logits, y).sum())
        except RuntimeError as error:
            if not is_missing_gradient(error):
                raise
            return None


def whole(n: int, total: int) -> Check:
    """Whether all samples were evaluated."""
    if n == total:
        return Check("all samples", "fine")
    return Check(
        "all samples",
        "warning",
        f"{n} of {total} samples were evaluated: such a figure is for orientation, leave out --samples to publish it",
    )


def _proof(outcomes: list[Outcome]) -> Iterator[Check]:
    proofs, attacks = ([one for one in outcomes if one.proof is proof] for proof in (True, False))
    for proof, attack in product(proofs, attacks):
        both = int((~proof.broken & attack.broken).sum())
        yield Check(
            f"proof: {attack.attack}",
            "error" if both else "fine",
            f"{attack.attack} breaks {both} samples that {proof.attack} proves to hold: the model's forward does more "
            "than its layers say, or one of both is wrong; trust the attack, and report the layers"
            if both
            else "",
        )


def _above_chance(samples: Samples, outcomes: list[Outcome]) -> Check:
    every = [stage for one in outcomes for stage in (one.stages or (one,))]
    natural = next((one for one in every if one.attack == "natural"), None)
    constant = float(samples.y.bincount().max()) / len(samples)
    if natural is None or len(samples) < LEAST or constant == 1:
        why = "natural is not among the attacks" if natural is None else f"needs {LEAST} samples, of two classes"
        return Check("above chance", "not run", why)
    if natural.accuracy > constant:
        return Check("above chance", "fine")
    return Check(
        "above chance",
        "warning",
        f"without attack {natural.accuracy:.2%} are right, no more than always the same class would be, "
        f"{constant:.2%}: look at the weights, the scale of the samples and their labels",
    )


def _below_natural(plans: Mapping[str, Plan], outcomes: list[Outcome]) -> Check:
    everything = [*outcomes, *(stage for one in outcomes for stage in one.stages)]
    natural = next((one for one in everything if one.attack == "natural"), None)
    if natural is None:
        return Check("below natural", "not run", "natural is not among the attacks")
    climbing = [one for one in outcomes if not all(isinstance(a, Noise | Transfer) for a in plans[one.attack].values())]
    above = [one for one in climbing if int(natural.broken.sum()) - int(one.broken.sum()) > CHANCE]
    if not above:
        return Check("below natural", "fine")
    return Check(
        "below natural",
        "warning",
        f"{above[0].attack} leaves {above[0].accuracy:.2%}, more than the natural {natural.accuracy:.2%}: it makes the "
        "model better, look at its loss and its labels",
    )


def other_attack(plans: Mapping[str, Plan], trained_with: str | None) -> Check:
    """Whether other attacks than those of the training were used."""
    attacks = [a for plan in plans.values() for a in plan.values() if not isinstance(a, Natural | Noise | Transfer)]
    if trained_with in (None, "natural", "ibp") or not attacks:
        why = "trained_with is not given" if trained_with is None else "it was not trained against an attack"
        return Check("other attacks", "not run", why if attacks else "there is none")
    if all(isinstance(attack, PGD) for attack in attacks):
        return Check(
            "other attacks",
            "warning",
            f"{trained_with} trains against projected gradient steps, and only these were used: add standard",
        )
    return Check("other attacks", "fine")


def _black_box(plans: Mapping[str, Plan], outcomes: list[Outcome]) -> Check:
    """Of what the attacks themselves found: in a cascade, among those that the ones before left."""
    black, white, natural = [], [], torch.zeros_like(outcomes[0].broken)
    for stage, attack in ((s, plans[o.attack][s.attack]) for o in outcomes for s in (o.stages or (o,))):
        found = stage.attacked & stage.broken
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
    if gain <= CHANCE // 2 or gain <= BLACK_BOX_GAIN * len(natural):
        return Check("black box", "fine")
    return Check(
        "black box",
        "warning",
        f"attacks without gradients break another {gain} samples, {gain / len(natural):.2%}, that those with gradients "
        "do not: gradients are masked, or these attacks too weak, and the true accuracy may be lower still; add "
        "standard, restarts and queries",
    )


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal, values that are no numbers included."""
    return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()))


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
