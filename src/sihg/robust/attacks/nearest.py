"""The nearest misclassified point: attacks that keep it, whatever its distance, up to the radius of their ball."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.cw import CW
from sihg.robust.attacks.deepfool import DeepFool
from sihg.robust.attacks.fab import FAB
from sihg.robust.attacks.output_checks import SLACK
from sihg.robust.attacks.pgd import PGD
from sihg.robust.attacks.registry import build_attack
from sihg.robust.attacks.search import Search, true_places
from sihg.robust.threat import Ball, uniform_noise

HALVINGS = 10  # of the segment from x to a point found
FORMS = "fab-t[-T[-R]], pgd-T[-R], deepfool[-T] or cw[-T]"


class NearestSearch(Search):
    """A search that keeps the nearest misclassified point of each row within the ball; rows stay when they have one."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.distance = torch.full_like(self.margin, math.inf)

    def _ended(self) -> Tensor:
        """Return which rows are misclassified at x itself: the others stay when they have a point."""
        return self.distance == 0

    def unbroken(self) -> Rows:
        """Return the rows that are not misclassified at x itself."""
        self._looks = 0
        held = self._held(self.distance == 0)
        return self.rows if held is None else self.rows.take(held)

    def record(self, rows: Rows, point: Tensor, logits: Tensor) -> None:
        """Keep `point` for each row where it is misclassified, within the ball, and nearer than the point so far."""
        self.classes = logits.shape[1]
        wrong, distance = rows.breaks(logits), self.ball.lengths(point - rows.x).to(self.distance)
        nearer = wrong & (distance <= self.ball.eps * (1 + SLACK)) & (distance < self.distance[rows.place])
        self._keep(rows.place, nearer, point, logits.argmax(1), rows.leads(logits), wrong)
        self.distance[rows.place] = torch.where(nearer, distance, self.distance[rows.place])

    def record_within(self, rows: Rows, point: Tensor, logits: Tensor) -> Tensor | None:
        """Record; all rows stay."""
        self.record(rows, point, logits)
        return None

    def record_broken(self, rows: Rows, point: Tensor, logits: Tensor) -> Tensor | None:
        """Record; return the places of rows that are not misclassified at `point`, None if that is all of them."""
        self.record(rows, point, logits)
        return self.places_left(rows.breaks(logits))

    def shorten(self) -> None:
        """Bisect the segment from x to each point found; where the end is not misclassified in the last pass, undo."""
        kept = [self.x_adv.clone(), self.prediction.clone(), self.margin.clone(), self.distance.clone()]
        rows = self.rows.take(true_places(self.broken & (self.distance > 0)))
        if not len(rows):
            return
        whole, shape = kept[0][rows.place] - rows.x, (-1, *(1,) * (rows.x.dim() - 1))
        near, far = torch.zeros_like(self.margin[rows.place]), torch.ones_like(self.margin[rows.place])
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            point = self.ball.clip(rows.x + middle.view(shape) * whole)
            logits = self.compute_logits(rows, point)
            self.record(rows, point, logits)
            wrong = rows.breaks(logits)
            near, far = torch.where(wrong, near, middle), torch.where(wrong, middle, far)
        logits = self.compute_logits(rows, self.ball.clip(self.x_adv[rows.place]))
        undone = rows.place[~rows.breaks(logits)]  # another batch may round otherwise
        for now, before in zip((self.x_adv, self.prediction, self.margin, self.distance), kept, strict=True):
            now[undone] = before[undone]


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearest(Attack):
    """Let an attack that seeks the nearest misclassified point go on when it has one, and keep the nearest of all.

    At the end the segment from x to each point is bisected.

    Args:
        attack: FAB, DeepFool or CW, with the same ball.
    Example:
        >>> attack = Nearest(eps=1.0, norm="l2", attack=FAB(eps=1.0, norm="l2", steps=5))
        >>> verdict = attack.run(torch.nn.Identity(), torch.tensor([[0.6, 0.2]]), torch.tensor([0]))
        >>> verdict.broken, verdict.distance.round(decimals=2)
        (tensor([True]), tensor([0.2800]))
    """

    search_type: ClassVar[type[Search]] = NearestSearch
    uses_gradients: ClassVar[bool | None] = True

    attack: Attack

    @property
    def uses_margin(self) -> bool:
        """Whether it compares logits."""
        return self.attack.uses_margin

    @property
    def steps_per_run(self) -> int | None:
        """How many gradient steps a run of the attack has."""
        return self.attack.steps_per_run

    @property
    def is_restarted(self) -> bool:
        """Whether the attack starts more than once per sample or target."""
        return self.attack.is_restarted

    def max_passes(self, classes: int) -> float | None:
        """Return those of the attack, and the forward passes of `shorten`."""
        most = self.attack.max_passes(classes)
        return None if most is None else most + (HALVINGS + 1) / 3

    def search(self, search: Search, seed: int) -> None:
        """Attack, then bisect the segments."""
        assert isinstance(search, NearestSearch)
        self.attack.search(search, seed)
        search.shorten()


@dataclass(frozen=True, kw_only=True, eq=False)
class Bisection(Attack):
    """Seek the smallest radius at which PGD breaks each sample: a bisection with a radius of its own for every sample.

    A probe is a PGD within the radius r of the sample, with steps of 2.5 r / T. The first r is eps; while nothing is
    found, the next is half of it. Then r is the middle between the distance of the nearest point found and the largest
    smaller radius at which PGD found none. At the end the segment from x to each point is bisected.

    Args:
        steps: The steps T of a PGD.
        restarts: The runs of each PGD.
        probes: How many radii are tried.
    Example:
        >>> attack = Bisection(eps=1.0, steps=5)
        >>> verdict = attack.run(torch.nn.Identity(), torch.tensor([[0.6, 0.2]]), torch.tensor([0]))
        >>> verdict.broken, verdict.distance.round(decimals=2)
        (tensor([True]), tensor([0.2000]))
    """

    search_type: ClassVar[type[Search]] = NearestSearch
    uses_gradients: ClassVar[bool | None] = True

    steps: int = 20
    restarts: int = 1
    probes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts, probes=self.probes)

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return those of all probes, and the forward passes at the sample and of `shorten`."""
        return self.probes * self.restarts * (self.steps + 1 / 3) + (HALVINGS + 2) / 3

    def search(self, search: Search, seed: int) -> None:
        """Probe one radius after the other."""
        assert isinstance(search, NearestSearch)
        search.record_clean()
        low = torch.zeros_like(search.distance)
        for probe in range(self.probes):
            rows = search.unbroken()
            if not len(rows):
                return
            far = search.distance[rows.place]
            radius = torch.where(far.isinf(), self.eps * 0.5**probe, (low[rows.place] + far) / 2)
            self._probe(search, rows, radius, seed, probe)
            failed = ~(search.distance[rows.place] < far)  # a point on the surface may be rounded beyond the radius
            low[rows.place] = torch.where(failed & far.isfinite(), radius, low[rows.place])
        search.shorten()

    def _probe(self, search: NearestSearch, rows: Rows, radius: Tensor, seed: int, probe: int) -> None:
        """Run PGD, each row within its own radius, until it is misclassified there."""
        pgd = PGD(eps=self.eps, norm=self.norm, bounds=self.bounds, steps=self.steps)
        lengths = radius.view(-1, *(1,) * (rows.x.dim() - 1))
        rows = replace(rows, feasible=rows.feasible.near(torch.zeros_like(rows.x), lengths))
        make = partial(uniform_noise, self.norm, radius=1.0, dtype=rows.x.dtype)
        before = search.distance[rows.place]
        for run in range(self.restarts):
            start = rows.draw(rows.x.shape[1:], make, seed, "bisection", self.restarts * probe + run).mul_(lengths)
            pgd.ascend(search, rows, rows.feasible.project_(start), 2.5 * lengths / self.steps)
            if run + 1 < self.restarts:
                held = search.places_left(search.distance[rows.place] < before)
                if held is not None:
                    rows, before, lengths = rows.take(held), before.index_select(0, held), lengths.index_select(0, held)
                    if not len(rows):
                        return


def plan_nearest(attacks: Sequence[str], ball: Ball) -> Mapping[str, Attack]:
    """Return for each name the attack that keeps the nearest misclassified points within the ball."""
    within: dict[str, Any] = {"eps": ball.eps, "norm": ball.norm, "bounds": ball.bounds}
    plan: dict[str, Attack] = {}
    for name in attacks:
        if name == "standard":  # a cascade, not one attack
            raise InputError("minimum-attack", name=name, forms=FORMS)
        attack = build_attack(name, ball)
        if isinstance(attack, PGD) and name != "fgsm":
            plan[name] = Bisection(**within, steps=attack.steps, restarts=attack.restarts)
        elif isinstance(attack, FAB | DeepFool | CW):
            plan[name] = Nearest(**within, attack=attack)
        else:
            raise InputError("minimum-attack", name=name, forms=FORMS)
    return plan
