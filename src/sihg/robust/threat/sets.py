"""Sets of perturbations in linf and L2: projections, steepest steps, noise."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sihg.robust.threat._rows import add_step, row_norms, take_rows
from sihg.robust.waits import Late, late


@dataclass(frozen=True, eq=False)
class LinfSet:
    """The perturbations, per row of a batch, with low <= delta <= high in every entry.

    Args:
        low, high: The limits of each entry.
    Example:
        >>> LinfSet(torch.zeros(1, 2), torch.ones(1, 2)).project_(torch.tensor([[-1.0, 0.5]]))
        tensor([[0.0000, 0.5000]])
    """

    low: Tensor
    high: Tensor

    def project_(self, delta: Tensor) -> Tensor:
        """Move `delta`, in place, to a nearby point of the set: clamp every entry."""
        return torch.clamp(delta, self.low, self.high, out=delta)

    def climb_(self, delta: Tensor, gradient: Tensor, step: float | Tensor) -> Tensor:
        """Step, in place, along the sign of the gradient, then project; changes `gradient` too."""
        return self.project_(add_step(delta, gradient.sign_(), step))

    def near(self, centre: Tensor, radius: float | Tensor) -> "LinfSet":
        """Return the part of the set within `radius` of `centre`, which is first projected onto the set."""
        centre = torch.clamp(centre, self.low, self.high)
        return LinfSet(torch.maximum(self.low, centre - radius), torch.minimum(self.high, centre + radius))

    def noisy(self, centre: Tensor | None, radius: float | Tensor, generator: torch.Generator) -> Tensor:
        """Draw a point: `centre` (or zero) plus uniform noise from the ball of `radius`, projected."""
        noise = torch.rand(self.low.shape, generator=generator, dtype=self.low.dtype).to(self.low.device)
        noise.mul_(2 * radius).sub_(radius)
        return self.project_(noise if centre is None else noise.add_(centre))

    def rows(self, index: Tensor) -> "LinfSet":
        """Return the set for these rows of the batch."""
        return LinfSet(self.low.index_select(0, index), self.high.index_select(0, index))

    def saturated(self, delta: Tensor) -> float | Late[float]:
        """Return the share of entries at one of their limits, among those that can move."""
        free = self.low < self.high
        at = (delta <= self.low).logical_or_(delta >= self.high).logical_and_(free)
        return late(lambda at, free: at / max(1, free), at.sum(), free.sum())


@dataclass(frozen=True, eq=False)
class L2Set:
    """The perturbations with low <= delta <= high within L2 balls, the last of which is the ball around zero.

    Projections follow one another, the smallest ball first. Every later set contains the centres of the earlier ones,
    so its projection moves no point away from them: earlier constraints stay satisfied.

    Args:
        low, high: The limits of each entry.
        balls: Centres (None: zero) and radii.
    Example:
        >>> limit = torch.full((1, 2), 9.0)
        >>> L2Set(-limit, limit, ((None, 1.0),)).project_(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    low: Tensor
    high: Tensor
    balls: tuple[tuple[Tensor | None, float | Tensor], ...] = field(default=())  # centres (None: zero) and radii

    def project_(self, delta: Tensor) -> Tensor:
        """Scale into each ball, then clamp."""
        for centre, radius in self.balls:
            if centre is not None:
                delta.sub_(centre)
            delta.mul_((radius / row_norms(delta).clamp_(min=torch.finfo(delta.dtype).tiny)).clamp_(max=1))
            if centre is not None:
                delta.add_(centre)
        return torch.clamp(delta, self.low, self.high, out=delta)

    def climb_(self, delta: Tensor, gradient: Tensor, step: float | Tensor) -> Tensor:
        """Step along the normalised gradient, unless it is zero."""
        tiny = torch.finfo(gradient.dtype).tiny
        gradient.div_(row_norms(gradient, math.inf).clamp_(min=tiny))  # first: squares of small entries vanish
        gradient.div_(row_norms(gradient).clamp_(min=tiny))
        return self.project_(add_step(delta, gradient, step))

    def near(self, centre: Tensor, radius: float | Tensor) -> "L2Set":
        """Intersect with the ball of `radius` around `centre`."""
        return L2Set(self.low, self.high, ((self.project_(centre.clone()), radius), *self.balls))

    def noisy(self, centre: Tensor | None, radius: float | Tensor, generator: torch.Generator) -> Tensor:
        """Draw uniformly from the ball: a normal direction, and a length radius u^(1/d)."""
        noise = torch.randn(self.low.shape, generator=generator, dtype=self.low.dtype)
        lengths = torch.rand((len(noise),) + (1,) * (noise.dim() - 1), generator=generator, dtype=noise.dtype)
        scale_to_ball(noise := noise.to(self.low.device), lengths.to(self.low.device), radius)
        return self.project_(noise if centre is None else noise.add_(centre))

    def rows(self, index: Tensor) -> "L2Set":
        """Return the set for these rows of the batch."""
        balls = tuple((take_rows(centre, index), take_rows(radius, index)) for centre, radius in self.balls)
        return L2Set(self.low.index_select(0, index), self.high.index_select(0, index), balls)

    def saturated(self, delta: Tensor) -> float | Late[float]:
        """Return the share of rows on the sphere around zero, up to a hundredth of its radius."""
        rows = max(1, len(delta))
        return late(lambda on: on / rows, (row_norms(delta) >= 0.99 * self.balls[-1][1]).sum())


def scale_to_ball(normal: Tensor, u: Tensor, radius: float | Tensor) -> Tensor:
    """Scale normal rows, in place, to uniform points of the L2 ball: lengths radius u^(1/d), u uniform per row.

    Args:
        normal: Normal numbers, a row per point.
        u: A uniform number per row.
        radius: The radius of the ball.
    Returns:
        `normal`.
    Example:
        >>> scale_to_ball(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]), 10.0)
        tensor([[6., 8.]])
    """
    lengths = u.view(-1, *(1,) * (normal.dim() - 1)) ** (1 / math.prod(normal.shape[1:]))
    return normal.mul_(radius * lengths / row_norms(normal))
