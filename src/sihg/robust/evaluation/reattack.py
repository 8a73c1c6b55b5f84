"""Check an evaluation by further attacks: with one step, in larger balls, with more steps and more restarts.

These checks have a budget of passes: samples times forward-backward passes, where a forward pass alone counts a third.
It depends on the model, the samples and the attacks of the evaluation, never on the clock. So equal evaluations run
equal checks, however busy the machine is. Unless the model is very large, it is enough for all of them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from sihg.errors import SihgError
from sihg.robust.attacks.base import Natural
from sihg.robust.attacks.input_checks import load_rows
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.pgd import FGSM, PGD
from sihg.robust.attacks.random_models import ONCE, Draws
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.attacks.search import OnPass
from sihg.robust.data.samples import Samples, stratified_rows
from sihg.robust.evaluation.diagnostics import CHANCE, MIN_SAMPLES, NO_GRADIENT, warn_if
from sihg.robust.evaluation.remedies import add_black_box, has_standard
from sihg.robust.gradients import compute_logits, cross_entropy_per_row, try_input_gradient
from sihg.robust.threat import Ball
from sihg.store.schema import Check

SAMPLES = (256, 128, 64, 32)  # to attack again: the most that passes allow
PASSES = {"one step": 22, "radius": 61, "steps": 101, "runs": 102}  # per sample and check, at most
MAX_PASSES_SHARE = 0.25  # of the evaluation's passes, which these checks together may take
MIN_PASSES = 30_000  # which they may take in any case
MIN_PRODUCTS = 1e12  # multiplications: of a larger model, MIN_PASSES would take minutes, and these are fewer passes
ALL_CHECKS = SAMPLES[-1] * sum(PASSES.values())  # passes: enough for all checks, which run even if that is more
MAX_PRODUCTS = 2e13  # multiplications: ALL_CHECKS of preact-resnet18 on 32 x 32 pixels, but not of models beyond
MAX_GAIN = 0.01  # of accuracy: what more steps or restarts may find in addition


def reattack_checks(
    model: nn.Module,
    samples: Samples,
    ball: Ball,
    plans: Mapping[str, Plan],
    outcomes: list[Outcome],
    seed: int,
    *,
    draws: Draws = ONCE,
    share: float = MAX_PASSES_SHARE,
    listen: Callable[[str], OnPass] | None = None,
) -> Iterator[Check]:
    """Compare attacks with weaker ones: those of the evaluation, or further ones on some samples.

    The cheapest check runs first. All together take at most `share` of the evaluation's passes, or a fixed number.
    `listen` gets the name of each check that is run, and returns what is called after each pass of the model.
    """
    checks = {"one step": _check_one_step, "radius": _check_radius, "steps": _check_steps, "runs": _check_restarts}
    probe = Probe(model, samples, ball, seed, plans, outcomes, draws=draws)
    if all(isinstance(attack, Natural) or attack.proves for plan in plans.values() for attack in plan.values()):
        why = "there is no attack"
    elif ball.eps == 0 or len(samples) < MIN_SAMPLES:
        why = "eps is 0" if ball.eps == 0 else f"fewer than {MIN_SAMPLES} samples"
    else:
        why = "" if probe.has_gradient() else NO_GRADIENT
    if why:
        yield from (Check(name, "not run", why) for name in checks)
        return
    allowed = probe.passes = max(share * sum(map(_passes, outcomes)), probe.min_passes())
    for place, (name, check) in enumerate(checks.items()):
        probe.later = tuple(checks)[place + 1 :]
        probe.on_pass = listen and listen(name)
        try:
            yield check(probe) or Check(
                name, "not run", f"with it the checks would take more than {allowed:.0f} passes"
            )
        except (SihgError, RuntimeError) as error:  # such as a model that fails in a larger ball
            yield Check(name, "not run", str(error).partition("\n")[0])


@dataclass(eq=False)
class Probe:
    """The samples to attack again, what is known of them, and the passes and checks that are left."""

    model: nn.Module
    samples: Samples
    ball: Ball
    seed: int
    plans: Mapping[str, Plan]
    outcomes: Sequence[Outcome]
    passes: float = 0.0
    later: tuple[str, ...] = ()  # the checks after this one
    on_pass: OnPass | None = None
    tried: dict[object, tuple[PGD, Tensor, Tensor]] = field(default_factory=dict)  # which samples were attacked, broken
    draws: Draws = ONCE
    last_iterate: bool = False  # the rule of the evaluation's PGD attacks

    def __post_init__(self) -> None:
        attacks = [attack for plan in self.plans.values() for attack in plan.values() if isinstance(attack, PGD)]
        self.last_iterate = bool(attacks) and all(attack.last_iterate for attack in attacks)
        for outcome in self.outcomes:  # use what the PGD attacks of the evaluation found
            for attack in self.plans[outcome.attack].values() if not outcome.stages else ():
                if type(attack) is PGD:  # a subclass may search in another way
                    self.tried.setdefault(_settings(attack), (attack, outcome.attacked, outcome.broken))

    def has_gradient(self) -> bool:
        """Return whether the model has a gradient."""
        return try_input_gradient(self.model, *self._one_sample(), cross_entropy_per_row) is not None

    def min_passes(self) -> float:
        """Return how many passes are allowed in any case: fewer if the model is large."""
        products = 3 * max(1, _count_products(self.model, self._one_sample()[0]))  # a backward pass takes two forward
        return max(min(MIN_PASSES, MIN_PRODUCTS / products), min(self._repeats * ALL_CHECKS, MAX_PRODUCTS / products))

    def rows(self, *attacks: PGD) -> Tensor | None:
        """Return the samples on which to compare attacks: all if they are known, else as many as passes allow.

        More than the fewest only if that takes no more than an equal part of what the checks to come have together,
        and leaves enough for each of them to run on the fewest.
        """
        fewest = SAMPLES[-1]
        ahead = fewest * self._repeats * sum(PASSES[name] for name in self.later)
        for n in (len(self.samples), *SAMPLES):
            rows = stratified_rows(self.samples, n, self.seed)
            new = [attack for attack in attacks if not bool(self._seen(attack)[0][rows].all())]
            passes = len(rows) * self._repeats * sum(attack.restarts * (attack.steps + 1 / 3) for attack in new)
            part = min(self.passes / (1 + len(self.later)), self.passes - ahead)
            if not passes or (n in SAMPLES and passes <= (part if n > fewest else self.passes)):
                return rows
        return None

    @property
    def found(self) -> Tensor:
        """Which samples some attack of the evaluation broke."""
        return torch.stack([outcome.broken & (not outcome.proof) for outcome in self.outcomes]).any(0)

    def broken(self, attack: PGD, rows: Tensor) -> Tensor:
        """Return which of the samples the attack breaks, running it where that is not known."""
        seen, broken = self._seen(attack)
        new = rows[~seen[rows]]
        if len(new):
            plans, some = {"": {"": attack}}, self.samples.take(new)
            (outcome,) = run_attacks(self.model, some, plans, seed=self.seed, draws=self.draws, on_pass=self.on_pass)
            seen[new], broken[new] = True, outcome.broken
            self.passes -= _passes(outcome)
        return broken[rows]

    def pgd(self, steps: int, restarts: int = 1, eps: float | None = None) -> PGD:
        """Return PGD within the ball, or within a larger one."""
        radius = self.ball.eps if eps is None else eps
        return PGD(
            eps=radius,
            norm=self.ball.norm,
            bounds=self.ball.bounds,
            steps=steps,
            restarts=restarts,
            last_iterate=self.last_iterate,
        )

    def known(self, fits: Callable[[int, int], bool], otherwise: PGD) -> PGD:
        """Return the shortest usual PGD of the evaluation whose steps and restarts fit, or another one."""
        kind = _settings(otherwise)[2:]
        whole = [attack for attack, seen, _ in self.tried.values() if bool(seen.all())]
        found = [a for a in whole if fits(a.steps, a.restarts) and _settings(a)[2:] == kind]
        return min(found, key=lambda attack: attack.steps * attack.restarts, default=otherwise)

    @property
    def _repeats(self) -> int:
        """How many passes a step of an attack on a random model takes at most: its draws, and votes on its point."""
        return self.draws.eot + (self.draws.votes if self.draws.votes > 1 else 0)

    def _one_sample(self) -> tuple[Tensor, Tensor]:
        return load_rows(self.model, self.samples, stratified_rows(self.samples, 1, self.seed))

    def _seen(self, attack: PGD) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros(len(self.samples), dtype=torch.bool)
        return self.tried.setdefault(_settings(attack), (attack, nothing, nothing.clone()))[1:]


def _count_products(model: nn.Module, x: Tensor) -> int:
    """Return how many multiplications the linear and convolutional layers need for one sample; 0 if not known."""
    counts = [0]

    def count(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        counts.append(output.numel() * layer.get_parameter("weight")[0].numel())

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    hooks = []
    try:
        hooks += [layer.register_forward_hook(count) for layer in layers]
        compute_logits(model, x)
    except Exception:  # such as compiled layers, which may take no hooks, or weights that are computed
        return 0
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


def _passes(outcome: Outcome) -> float:
    return outcome.passes + outcome.forwards / 3


def _settings(attack: PGD) -> tuple[object, ...]:
    """Return what tells attacks in one norm and within one pair of bounds apart."""
    return attack.steps, attack.restarts, attack.eps, attack.step_size, attack.last_iterate, attack.random_start


def _check_one_step(probe: Probe) -> Check | None:
    ball = probe.ball
    fgsm = FGSM(eps=ball.eps, norm=ball.norm, bounds=ball.bounds, last_iterate=probe.last_iterate)
    many = probe.known(lambda steps, _restarts: steps >= 20, probe.pgd(20))
    rows = probe.rows(fgsm, many)
    if rows is None:
        return None
    single, several = probe.broken(fgsm, rows), probe.broken(many, rows)
    message = (
        f"one step breaks {_share(single):.1%} of {len(rows)} samples, {_name(many)} only {_share(several):.1%}: "
        f"gradients are masked; {add_black_box(probe.plans, probe.outcomes)}"
    )
    return warn_if(_more_broken(single, several), "one step", message)


def _check_radius(probe: Probe) -> Check | None:
    ball, widths = probe.ball, probe.ball.widths(probe.samples.probe())
    half = float(ball.lengths(widths[None])) / 2  # where all balls meet
    radii = sorted({ball.eps, min(2 * ball.eps, max(half, ball.eps)), max(half, ball.eps)})
    steps = probe.known(lambda steps, restarts: 10 <= steps <= 20 and restarts == 1, probe.pgd(10)).steps
    attacks = [probe.pgd(steps, eps=eps) for eps in radii]
    rows = probe.rows(*attacks)
    if rows is None:
        return None
    broken = [probe.broken(attack, rows) for attack in attacks]
    for (small, a), (large, b) in pairwise(zip(radii, broken, strict=True)):
        if _more_broken(a, b):
            message = (
                f"accuracy rises from {1 - _share(a):.1%} to {1 - _share(b):.1%} as eps grows from {small:g} to "
                f"{large:g}: the attack misses adversarial examples that exist in a smaller ball, so gradients are "
                f"masked; {add_black_box(probe.plans, probe.outcomes)}"
            )
            return Check("radius", "warning", message)
    n, held = len(rows), 1 - _share(broken[-1])
    constant = float(probe.samples.y[rows].bincount().max()) / n
    message = (
        f"at eps {radii[-1]:g}, half the range or more, {held:.1%} hold, though all samples could be made alike: "
        f"gradients are masked; {add_black_box(probe.plans, probe.outcomes)}"
    )
    fires = radii[-1] >= half and held > constant + 2 * math.sqrt(constant * (1 - constant) / n)
    return warn_if(fires, "radius", message)


def _check_steps(probe: Probe) -> Check | None:
    attack = probe.known(lambda steps, restarts: steps >= 100 and restarts == 1, probe.pgd(100))
    return _check_convergence(probe, "steps", attack)


def _check_restarts(probe: Probe) -> Check | None:
    attack = probe.known(lambda steps, restarts: steps == 20 and restarts >= 5, probe.pgd(20, 5))
    return _check_convergence(probe, "runs", attack)


def _check_convergence(probe: Probe, name: str, attack: PGD) -> Check | None:
    """Check that the attack does not break more than the evaluation."""
    rows = probe.rows(attack)
    if rows is None:
        return None
    less, more = probe.found[rows], probe.broken(attack, rows)
    remedy = _name(attack) if has_standard(probe.plans) else f"{_name(attack)} or standard"
    message = (
        f"of {len(rows)} samples {_name(attack)} breaks {_share(more):.1%}, all attacks of the evaluation together "
        f"{_share(less):.1%}: add {remedy}"
    )
    return warn_if(_more_broken(more, less), name, message)


def _name(attack: PGD) -> str:
    return f"pgd-{attack.steps}" + (f"-{attack.restarts}" if attack.restarts > 1 else "")


def _more_broken(broken: Tensor, others: Tensor) -> bool:
    """Return whether `broken` has more samples than `others`, and not by chance."""
    gain = int(broken.sum()) - int(others.sum())
    return gain > CHANCE and gain > MAX_GAIN * len(broken)


def _share(broken: Tensor) -> float:
    return float(broken.double().mean())
