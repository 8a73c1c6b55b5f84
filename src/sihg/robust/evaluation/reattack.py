"""Checks that attack again: what stronger, weaker and wider attacks show beside those of an evaluation."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from sihg.errors import SihgError
from sihg.robust.attacks.fgsm import FGSM
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import Outcome, device_of, run_attacks
from sihg.robust.data.samples import Samples, stratified_rows
from sihg.robust.evaluation.diagnostics import BLIND, CHANCE, FEW, LEAST, Check, slope_of
from sihg.robust.gradients import cross_entropy_per_row
from sihg.robust.threat import Ball

MANY = 256  # samples that are attacked again, at most
SHARE, LITTLE = 0.25, 0.5  # of the evaluation's time, and the seconds in any case, that all checks may take
GAIN = 0.01  # of accuracy: what more steps or runs may find beside


def again(
    model: nn.Module,
    samples: Samples,
    ball: Ball,
    plans: Mapping[str, Plan],
    outcomes: list[Outcome],
    seed: int,
    *,
    spent: float = 0.0,
    share: float = SHARE,
) -> Iterator[Check]:
    """What attacks show beside weaker ones: those of the evaluation, or others on some samples.

    These are made cheapest first, as long as they, and the checks that have `spent` some seconds, take a small share of
    the evaluation's time.
    """
    checks = {"one step": _one_step, "radius": _radius, "steps": _steps, "runs": _runs}
    seconds = sum(one.seconds for one in outcomes)
    passes = sum(one.passes + one.forwards / 3 for one in outcomes)
    allowed = max(share * seconds, LITTLE)
    found = torch.stack([one.broken & (not one.proof) for one in outcomes]).any(0)
    probe = Probe(model, samples, ball, seed, allowed - spent, seconds / max(1.0, passes), found)
    if all(isinstance(attack, Natural) or attack.proves for plan in plans.values() for attack in plan.values()):
        why = "there is no attack"
    elif ball.eps == 0 or len(samples) < LEAST:
        why = "eps is 0" if ball.eps == 0 else f"fewer than {LEAST} samples"
    else:
        why = "" if probe.sees() else BLIND
    if why:
        yield from (Check(name, "not run", why) for name in checks)
        return
    probe.learn(plans, outcomes)
    for name, check in checks.items():
        try:
            yield check(probe) or Check(name, "not run", f"with it the checks would take more than {allowed:.1f} s")
        except (SihgError, RuntimeError) as error:  # where nobody asked the model, such as in a larger ball
            yield Check(name, "not run", str(error).partition("\n")[0])


@dataclass(eq=False)
class Probe:
    """Samples to attack again, what is known of them, and the seconds left for it."""

    model: nn.Module
    samples: Samples
    ball: Ball
    seed: int
    seconds: float
    unit: float  # seconds that a pass takes for one sample among many
    found: Tensor  # which samples some attack of the evaluation breaks
    start: float = 0.0  # seconds that a pass of few samples takes
    attacks: list[tuple[PGD, Tensor, Tensor]] = field(default_factory=list)  # which samples it saw, and broke

    def sees(self) -> bool:
        """Whether the model gives a gradient; notes how long one of few samples takes, where that can be paid."""
        self.start = FEW * self.unit
        for n in (1, FEW):
            if n == FEW and self.start > self.seconds:
                break
            rows, device = stratified_rows(self.samples, n, self.seed), device_of(self.model)
            x, y, begin = self.samples.floats(rows).to(device), self.samples.y[rows].to(device), time.perf_counter()
            g = slope_of(self.model, x, y, cross_entropy_per_row)
            if g is None:
                return False
            float(g.sum())  # waits for other devices
            self.start = max(self.start, time.perf_counter() - begin)
            self.seconds -= time.perf_counter() - begin
        return True

    def learn(self, plans: Mapping[str, Plan], outcomes: list[Outcome]) -> None:
        """Take over what the evaluation has found by PGD."""
        for one in outcomes:
            for attack in plans[one.attack].values() if not one.stages else ():
                if type(attack) is PGD:  # a subclass may search otherwise
                    self.attacks.append((attack, one.attacked, one.broken))

    def rows(self, *attacks: PGD) -> Tensor | None:
        """The samples to compare attacks on: all, where all are known, else so many as can be paid."""
        for n in (len(self.samples), MANY, MANY // 2, MANY // 4):
            rows = stratified_rows(self.samples, n, self.seed)
            passes = sum(one.steps * one.restarts + 1 for one in attacks if not bool(self._seen(one)[0][rows].all()))
            seconds = passes * (self.start + max(0, len(rows) - FEW) * self.unit)
            if not passes or (n <= MANY and seconds <= self.seconds):
                return rows
        return None

    def broken(self, attack: PGD, rows: Tensor) -> Tensor:
        """Which of the samples do not hold."""
        seen, broken = self._seen(attack)
        new = rows[~seen[rows]]
        if len(new):
            begin = time.perf_counter()
            (outcome,) = run_attacks(self.model, self.samples.take(new), {"": {"": attack}}, seed=self.seed)
            seen[new], broken[new] = True, outcome.broken
            self.seconds -= time.perf_counter() - begin
        return broken[rows]

    def pgd(self, steps: int, restarts: int = 1, eps: float | None = None) -> PGD:
        """PGD within the ball, or a larger one."""
        radius = self.ball.eps if eps is None else eps
        return PGD(eps=radius, norm=self.ball.norm, bounds=self.ball.bounds, steps=steps, restarts=restarts)

    def known(self, will_do: Callable[[int, int], bool], otherwise: PGD) -> PGD:
        """The shortest PGD of the evaluation whose steps and runs will do, of the usual kind, or another one."""
        found = [
            one
            for one, seen, _ in self.attacks
            if will_do(one.steps, one.restarts) and bool(seen.all()) and _usual(one) == _usual(otherwise)
        ]
        return min(found, key=lambda one: one.steps * one.restarts, default=otherwise)

    def _seen(self, attack: PGD) -> tuple[Tensor, Tensor]:
        settings = (attack.steps, attack.restarts, *_usual(attack))
        for one, seen, broken in self.attacks:
            if (one.steps, one.restarts, *_usual(one)) == settings:
                return seen, broken
        nothing = torch.zeros(len(self.samples), dtype=torch.bool)
        self.attacks.append((attack, nothing, nothing.clone()))
        return self.attacks[-1][1:]


def _usual(attack: PGD) -> tuple[object, ...]:
    """What else tells two searches apart."""
    return attack.eps, attack.step_size, attack.last_iterate, attack.random_start


def _one_step(probe: Probe) -> Check | None:
    ball = probe.ball
    one = FGSM(eps=ball.eps, norm=ball.norm, bounds=ball.bounds)
    many = probe.known(lambda steps, _runs: steps >= 20, probe.pgd(20))
    rows = probe.rows(one, many)
    if rows is None:
        return None
    single, several = probe.broken(one, rows), probe.broken(many, rows)
    if not _more_broken(single, several):
        return Check("one step", "fine")
    return Check(
        "one step",
        "warning",
        f"one step breaks {_share(single):.1%} of {len(rows)} samples, {_name(many)} only {_share(several):.1%}: "
        "gradients are masked, trust square",
    )


def _radius(probe: Probe) -> Check | None:
    ball, widths = probe.ball, probe.ball.widths(probe.samples.x)
    half = float(widths.max() if ball.norm == "linf" else torch.linalg.vector_norm(widths)) / 2  # where all can meet
    radii = sorted({ball.eps, min(2 * ball.eps, max(half, ball.eps)), max(half, ball.eps)})
    steps = probe.known(lambda steps, runs: 10 <= steps <= 20 and runs == 1, probe.pgd(10)).steps
    attacks = [probe.pgd(steps, eps=eps) for eps in radii]
    rows = probe.rows(*attacks)
    if rows is None:
        return None
    broken = [probe.broken(attack, rows) for attack in attacks]
    for (small, a), (large, b) in pairwise(zip(radii, broken, strict=True)):
        if _more_broken(a, b):
            return Check(
                "radius",
                "warning",
                f"accuracy rises from {1 - _share(a):.1%} to {1 - _share(b):.1%} as eps grows from {small:g} to "
                f"{large:g}: the attack does not find what is there, gradients are masked; trust square",
            )
    n, held = len(rows), 1 - _share(broken[-1])
    constant = float(probe.samples.y[rows].bincount().max()) / n
    if radii[-1] >= half and held > constant + 2 * math.sqrt(constant * (1 - constant) / n):
        return Check(
            "radius",
            "warning",
            f"at eps {radii[-1]:g}, half the range or more, {held:.1%} hold, though all samples could be made alike: "
            "gradients are masked; trust square",
        )
    return Check("radius", "fine")


def _steps(probe: Probe) -> Check | None:
    return _more_found(probe, "steps", probe.known(lambda steps, runs: steps >= 100 and runs == 1, probe.pgd(100)))


def _runs(probe: Probe) -> Check | None:
    return _more_found(probe, "runs", probe.known(lambda steps, runs: steps == 20 and runs >= 5, probe.pgd(20, 5)))


def _more_found(probe: Probe, name: str, attack: PGD) -> Check | None:
    """Whether it breaks more than PGD-20 and what the evaluation has."""
    usual = probe.pgd(20)
    rows = probe.rows(usual, attack)
    if rows is None:
        return None
    less, more = probe.broken(usual, rows) | probe.found[rows], probe.broken(attack, rows)
    if not _more_broken(more, less):
        return Check(name, "fine")
    return Check(
        name,
        "warning",
        f"of {len(rows)} samples {_name(attack)} breaks {_share(more):.1%}, pgd-20 and all that was asked for "
        f"{_share(less):.1%}: PGD-20 has not converged on this model, take more steps and runs, or standard",
    )


def _name(attack: PGD) -> str:
    return f"pgd-{attack.steps}" + (f"-{attack.restarts}" if attack.restarts > 1 else "")


def _more_broken(some: Tensor, others: Tensor) -> bool:
    """Whether there are more of them than may be chance."""
    gain = int(some.sum()) - int(others.sum())
    return gain > CHANCE and gain > GAIN * len(some)


def _share(broken: Tensor) -> float:
    return float(broken.double().mean())
