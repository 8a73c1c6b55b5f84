"""The attack of Carlini and Wagner (2017) in L2: a small perturbation and a wrong class, weighed by a constant c."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.search import Search
from sihg.robust.gradients import leads

BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8  # of Adam
INSIDE = 0.999999  # of the range of a feature: tanh never reaches the bounds
GROWTH = 10  # of c while no misclassified point is found


@dataclass(frozen=True, kw_only=True, eq=False)
class CW(Attack):
    """C&W-T (Carlini and Wagner, 2017): T Adam steps for each of several constants c, in L2.

    Minimise over v, where x' = x(v) = (low + high)/2 + (high - low)/2 tanh(v) stays within the bounds:

        |x' - x|₂² + c max(z_y - max_{j≠y} z_j + κ, 0)

    c is ten times as large while no point is misclassified by more than κ; then a bisection seeks the smallest such c.
    Without bounds x' = v. It seeks a small perturbation, whatever eps is: a sample is broken if a misclassified point
    lies within the ball.

    Args:
        steps: The steps T for each c.
        searches: How many values of c are tried.
        step_size: Adam's, in the units of v.
        confidence: The lead κ that the wrong class shall have.
        first_c: The first value of c.
    Raises:
        InputError: If a setting is out of range, the norm is not l2, or a bound is infinite.
    Example:
        >>> attack = CW(eps=0.5, norm="l2", steps=50)
        >>> attack(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    uses_gradients: ClassVar[bool | None] = True
    takes_targets: ClassVar[bool] = True

    norm: str = "l2"
    steps: int = 1000
    searches: int = 9
    step_size: float = 0.01
    confidence: float = 0.0
    first_c: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, searches=self.searches)
        if self.norm != "l2":
            raise InputError("attack-norm", attack="cw", norm=self.norm, norms="l2")
        if not all(0 < value < math.inf for value in (self.step_size, self.first_c)):
            raise InputError("cw-range", step_size=self.step_size, first_c=self.first_c)
        if not 0 <= self.confidence < math.inf:
            raise InputError("confidence-range", confidence=self.confidence)
        if any(bool(torch.as_tensor(bound).isinf().any()) for bound in self.bounds or ()):
            raise InputError("cw-bounds")

    @property
    def uses_margin(self) -> bool:
        """Whether it compares logits: those of the label and of other classes."""
        return True

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return a pass per step, and a forward pass at the sample."""
        return 1 / 3 + self.searches * self.steps

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Minimise for one c after the other, on the rows that are not broken yet."""
        search.record_clean()
        c = torch.full_like(search.margin, self.first_c)
        low, high = torch.zeros_like(c), torch.full_like(c, math.inf)
        centre, half = self._range(c)
        for _ in range(self.searches):
            rows = search.unbroken()
            if not len(rows):
                return
            found = self._minimise(search, rows, c, centre, half)
            low, high = torch.where(found, low, c), torch.where(found, c, high)
            c = torch.where(high.isinf(), GROWTH * c, (low + high) / 2)

    def _minimise(self, search: Search, rows: Rows, c: Tensor, centre: Tensor, half: Tensor | None) -> Tensor:
        """Take T steps; return for each row of the search whether a point was misclassified with confidence."""
        found = torch.zeros_like(search.broken)
        v = rows.x if half is None else (INSIDE * ((rows.x - centre) / half).nan_to_num_()).atanh()
        m, s = torch.zeros_like(v), torch.zeros_like(v)
        for step in range(1, self.steps + 1):
            tanh = v.tanh() if half is not None else v
            point = v if half is None else self.ball.clip(centre + half * tanh)
            loss = partial(_excess, self.confidence, rows.target)
            logits, excess, g = search.compute_gradient(rows, point, loss)
            found[rows.place] |= excess <= 0
            held = search.record_within(rows, point, logits)
            g = 2 * (point - rows.x) + c[rows.place].view(-1, *(1,) * (g.dim() - 1)) * g
            g = g if half is None else g * half * (1 - tanh * tanh)
            if held is not None:
                rows = rows.take(held)
                v, m, s, g = (tensor.index_select(0, held) for tensor in (v, m, s, g))
                if not len(rows):
                    break
            m, s = torch.lerp(g, m, BETA_1), torch.lerp(g * g, s, BETA_2)
            v = v - self.step_size * (m / (1 - BETA_1**step)) / ((s / (1 - BETA_2**step)).sqrt() + TINY)
        return found

    def _range(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the centre of the bounds and half their distance; None for that without bounds."""
        if self.bounds is None:
            return like.new_zeros(()), None
        low, high = (torch.as_tensor(bound, dtype=like.dtype, device=like.device) for bound in self.bounds)
        return (low + high) / 2, (high - low) / 2


def _excess(confidence: float, target: Tensor | None, logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, by how much the row is from broken with this confidence."""
    return (leads(logits, y, target) + confidence).clamp(min=0)
