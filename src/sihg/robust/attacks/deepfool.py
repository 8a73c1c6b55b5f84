"""DeepFool (Moosavi-Dezfooli et al., 2016): from linearised boundary to linearised boundary, until one is crossed."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.fab import REACH
from sihg.robust.attacks.search import Search
from sihg.robust.gradients import logit_difference, misclassified, wrong_classes

NORMS = ("linf", "l2")


@dataclass(frozen=True, kw_only=True, eq=False)
class DeepFool(Attack):
    """DeepFool-T (Moosavi-Dezfooli et al., 2016): at most T steps, each to the nearest linearised class boundary.

    With f_k = z_k - z_y and its gradient w_k at x', for the likeliest wrong classes k at x:

        l = argmin |f_k| / |w_k|_q        (q = 2 for l2, 1 for linf)
        r <- r + |f_l| / |w_l|₂² w_l        (linf: |f_l| / |w_l|₁ sign(w_l))
        x' <- clip(x + (1 + overshoot) r)

    It ends where x' is misclassified. It seeks a small perturbation, whatever eps is: a sample is broken if a
    misclassified point lies within the ball. A step costs one pass per class.

    Args:
        steps: The most steps T.
        candidates: The likeliest classes, the label included, whose boundaries are tried.
        overshoot: How far to go beyond a boundary, relative to r.
    Raises:
        InputError: If a setting is out of range, or the norm is neither linf nor l2.
    Example:
        >>> attack = DeepFool(eps=0.5, norm="l2", bounds=None)
        >>> attack(torch.nn.Identity(), torch.tensor([[0.2, 0.0]]), torch.tensor([0])).round(decimals=3)
        tensor([[0.0980, 0.1020]])
    """

    uses_gradients: ClassVar[bool | None] = True

    steps: int = 50
    candidates: int = 10
    overshoot: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, candidates=self.candidates)
        if self.candidates < 2:
            raise InputError("deepfool-candidates", candidates=self.candidates)
        if not 0 <= self.overshoot < math.inf:
            raise InputError("overshoot-range", overshoot=self.overshoot)
        if self.norm not in NORMS:
            raise InputError("attack-norm", attack="deepfool", norm=self.norm, norms=", ".join(NORMS))

    @property
    def uses_margin(self) -> bool:
        """Whether it compares logits: those of the label and of other classes."""
        return True

    def max_passes(self, classes: int) -> float:
        """Return a pass per wrong class and a forward pass per step, and a forward pass at the sample."""
        return 1 / 3 + self.steps * (min(self.candidates, classes) - 1 + 1 / 3)

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Step until a point is misclassified; points within the ball count."""
        targets = wrong_classes(search.record_clean(), search.rows.y)[:, : self.candidates - 1]
        if not targets.shape[1]:  # one class
            return
        rows = search.unbroken()
        point, total, wrong = rows.x, torch.zeros_like(rows.x), torch.zeros_like(rows.y, dtype=torch.bool)
        for _ in range(self.steps):
            if not len(rows):
                return
            move = self._move(search, rows, targets[rows.place], point)
            total = torch.where(wrong.view(-1, *(1,) * (total.dim() - 1)), total, total + move)
            point = self.ball.clip(rows.x + (1 + self.overshoot) * total)
            logits = search.compute_logits(rows, point)
            search.record_within(rows, point, logits)
            wrong = misclassified(logits, rows.y)
            held = search.places_left(wrong)
            if held is not None:
                rows = rows.take(held)
                point, total, wrong = (tensor.index_select(0, held) for tensor in (point, total, wrong))

    def _move(self, search: Search, rows: Rows, targets: Tensor, point: Tensor) -> Tensor:
        """Return the shortest step to a linearised boundary; zero where no gradient shows a way."""
        shape, tiny = (-1, *(1,) * (point.dim() - 1)), torch.finfo(point.dtype).tiny
        least, best = torch.full_like(targets[:, 0], REACH * self.eps, dtype=point.dtype), torch.zeros_like(point)
        for target in targets.unbind(1):
            _, f, w = search.compute_gradient(rows, point, partial(logit_difference, target))
            slope = torch.linalg.vector_norm(w.flatten(1), ord=2 if self.norm == "l2" else 1, dim=1).clamp_(min=tiny)
            distance = f.abs() / slope
            direction = w / slope.view(shape) if self.norm == "l2" else w.sign()
            nearer = (distance < least).view(shape)
            best = torch.where(nearer, distance.view(shape) * direction, best)
            least = torch.minimum(least, distance)
        return best
