"""Check an evaluation by further attacks: with one step, in larger balls, with more steps and more restarts."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from sihg.errors import SihgError
from sihg.robust.attacks.base import Natural
from sihg.robust.attacks.pgd import FGSM, PGD
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import Outcome, load_rows, run_attacks
from sihg.robust.data.samples import Samples, stratified_rows
from sihg.robust.evaluation.diagnostics import CHANCE, MAX_PROBED, MIN_SAMPLES, NO_GRADIENT, warn_if
from sihg.robust.gradients import cross_entropy_per_row, try_input_gradient
from sihg.robust.threat import Ball
from sihg.store.schema import Check

MAX_REATTACKED = 256  # samples
MAX_TIME_SHARE = 0.25  # of the evaluation's time, which all checks together may take
MIN_SECONDS = 0.5  # which they may take in any case
MAX_GAIN = 0.01  # of accuracy: what more steps or restarts may find in addition


def reattack_checks(
    model: nn.Module,
    samples: Samples,
    ball: Ball,
    plans: Mapping[str, Plan],
    outcomes: list[Outcome],
    seed: int,
    *,
    spent: float = 0.0,
    share: float = MAX_TIME_SHARE,
) -> Iterator[Check]:
    """Compare attacks with weaker ones: those of the evaluation, or further ones on some samples.

    The cheapest run first, as long as all checks take a small share of the evaluation's time. `spent` are the seconds
    that other checks have taken, `share` the share of the time that all may take.
    """
    checks = {"one step": _check_one_step, "radius": _check_radius, "steps": _check_steps, "runs": _check_restarts}
    seconds = sum(outcome.seconds for outcome in outcomes)
    passes = sum(outcome.passes + outcome.forwards / 3 for outcome in outcomes)
    allowed = max(share * seconds, MIN_SECONDS)
    found = torch.stack([outcome.broken & (not outcome.proof) for outcome in outcomes]).any(0)
    probe = Probe(model, samples, ball, seed, allowed - spent, seconds / max(1.0, passes), found)
    if all(isinstance(attack, Natural) or attack.proves for plan in plans.values() for attack in plan.values()):
        why = "there is no attack"
    elif ball.eps == 0 or len(samples) < MIN_SAMPLES:
        why = "eps is 0" if ball.eps == 0 else f"fewer than {MIN_SAMPLES} samples"
    else:
        why = "" if probe.has_gradient() else NO_GRADIENT
    if why:
        yield from (Check(name, "not run", why) for name in checks)
        return
    probe.learn(plans, outcomes)
    for name, check in checks.items():
        try:
            yield check(probe) or Check(name, "not run", f"with it the checks would take more than {allowed:.1f} s")
        except (SihgError, RuntimeError) as error:  # such as a model that fails in a larger ball
            yield Check(name, "not run", str(error).partition("\n")[0])


@dataclass(eq=False)
class Probe:
    """The samples to attack again, what is known of them, and the seconds that are left."""

    model: nn.Module
    samples: Samples
    ball: Ball
    seed: int
    seconds: float
    unit: float  # seconds of a pass per sample, among many
    found: Tensor  # which samples some attack of the evaluation broke
    start: float = 0.0  # seconds of a pass of few samples
    tried: dict[object, tuple[PGD, Tensor, Tensor]] = field(default_factory=dict)  # which samples were attacked, broken

    def has_gradient(self) -> bool:
        """Return whether the model has a gradient; measure how long that of few samples takes, if time allows."""
        self.start = MAX_PROBED * self.unit
        for n in (1, MAX_PROBED):
            if n == MAX_PROBED and self.start > self.seconds:
                break
            x, y = load_rows(self.model, self.samples, stratified_rows(self.samples, n, self.seed))
            begin = time.perf_counter()
            g = try_input_gradient(self.model, x, y, cross_entropy_per_row)
            if g is None:
                return False
            float(g.sum())  # waits for other devices
            self.start = max(self.start, time.perf_counter() - begin)
            self.seconds -= time.perf_counter() - begin
        return True

    def learn(self, plans: Mapping[str, Plan], outcomes: list[Outcome]) -> None:
        """Use what the PGD attacks of the evaluation found."""
        for outcome in outcomes:
            for attack in plans[outcome.attack].values() if not outcome.stages else ():
                if type(attack) is PGD:  # a subclass may search in another way
                    self.tried.setdefault(_settings(attack), (attack, outcome.attacked, outcome.broken))

    def rows(self, *attacks: PGD) -> Tensor | None:
        """Return the samples on which to compare attacks: all if they are known, else as many as time allows."""
        for n in (len(self.samples), MAX_REATTACKED, MAX_REATTACKED // 2, MAX_REATTACKED // 4):
            rows = stratified_rows(self.samples, n, self.seed)
            new = [attack for attack in attacks if not bool(self._seen(attack)[0][rows].all())]
            passes = sum(attack.steps * attack.restarts + 1 for attack in new)
            seconds = passes * (self.start + max(0, len(rows) - MAX_PROBED) * self.unit)
            if not passes or (n <= MAX_REATTACKED and seconds <= self.seconds):
                return rows
        return None

    def broken(self, attack: PGD, rows: Tensor) -> Tensor:
        """Return which of the samples the attack breaks, running it where that is not known."""
        seen, broken = self._seen(attack)
        new = rows[~seen[rows]]
        if len(new):
            begin = time.perf_counter()
            (outcome,) = run_attacks(self.model, self.samples.take(new), {"": {"": attack}}, seed=self.seed)
            seen[new], broken[new] = True, outcome.broken
            self.seconds -= time.perf_counter() - begin
        return broken[rows]

    def pgd(self, steps: int, restarts: int = 1, eps: float | None = None) -> PGD:
        """Return PGD within the ball, or within a larger one."""
        radius = self.ball.eps if eps is None else eps
        return PGD(eps=radius, norm=self.ball.norm, bounds=self.ball.bounds, steps=steps, restarts=restarts)

    def known(self, fits: Callable[[int, int], bool], otherwise: PGD) -> PGD:
        """Return the shortest usual PGD of the evaluation whose steps and restarts fit, or another one."""
        kind = _settings(otherwise)[2:]
        whole = [attack for attack, seen, _ in self.tried.values() if bool(seen.all())]
        found = [a for a in whole if fits(a.steps, a.restarts) and _settings(a)[2:] == kind]
        return min(found, key=lambda attack: attack.steps * attack.restarts, default=otherwise)

    def _seen(self, attack: PGD) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros(len(self.samples), dtype=torch.bool)
        return self.tried.setdefault(_settings(attack), (attack, nothing, nothing.clone()))[1:]


def _settings(attack: PGD) -> tuple[object, ...]:
    """Return what tells attacks in one norm and within one pair of bounds apart."""
    return attack.steps, attack.restarts, attack.eps, attack.step_size, attack.last_iterate, attack.random_start


def _check_one_step(probe: Probe) -> Check | None:
    ball = probe.ball
    fgsm = FGSM(eps=ball.eps, norm=ball.norm, bounds=ball.bounds)
    many = probe.known(lambda steps, _restarts: steps >= 20, probe.pgd(20))
    rows = probe.rows(fgsm, many)
    if rows is None:
        return None
    single, several = probe.broken(fgsm, rows), probe.broken(many, rows)
    message = (
        f"one step breaks {_share(single):.1%} of {len(rows)} samples, {_name(many)} only {_share(several):.1%}: "
        "gradients are masked, trust square"
    )
    return warn_if(_more_broken(single, several), "one step", message)


def _check_radius(probe: Probe) -> Check | None:
    ball, widths = probe.ball, probe.ball.widths(probe.samples.x)
    half = float(widths.max() if ball.norm == "linf" else torch.linalg.vector_norm(widths)) / 2  # where all balls meet
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
                "masked; trust square"
            )
            return Check("radius", "warning", message)
    n, held = len(rows), 1 - _share(broken[-1])
    constant = float(probe.samples.y[rows].bincount().max()) / n
    message = (
        f"at eps {radii[-1]:g}, half the range or more, {held:.1%} hold, though all samples could be made alike: "
        "gradients are masked; trust square"
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
    """Check that the attack does not break more than PGD-20 and the evaluation together."""
    short = probe.pgd(20)
    rows = probe.rows(short, attack)
    if rows is None:
        return None
    less, more = probe.broken(short, rows) | probe.found[rows], probe.broken(attack, rows)
    message = (
        f"of {len(rows)} samples {_name(attack)} breaks {_share(more):.1%}, pgd-20 and the evaluation together "
        f"{_share(less):.1%}: PGD-20 has not converged on this model, use more steps and restarts, or standard"
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
