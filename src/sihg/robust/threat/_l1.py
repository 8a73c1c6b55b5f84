"""The set of perturbations in L1: the exact projection within bounds (Croce and Hein, 2021), sparse steps, noise."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sihg.robust.threat._rows import row_norms, take_rows
from sihg.robust.waits import Late, late


@dataclass(frozen=True, eq=False)
class L1Set:
    """The perturbations with low <= delta <= high within L1 balls, the first of which is the ball around zero.

    The projection onto that ball within the bounds is exact. Every later ball lies around a point of all sets before,
    towards which a perturbation is then scaled: no earlier constraint is lost on the way to it, for sets are convex.

    Args:
        low, high: The limits of each entry.
        balls: Centres (None: zero) and radii.
    Example:
        >>> limit = torch.full((1, 2), 9.0)
        >>> L1Set(-limit, limit, ((None, 1.0),)).project_(torch.tensor([[2.0, 0.0]]))
        tensor([[1., 0.]])
    """

    low: Tensor
    high: Tensor
    balls: tuple[tuple[Tensor | None, float | Tensor], ...] = field(default=())  # centres (None: zero) and radii

    def project_(self, delta: Tensor) -> Tensor:
        """Move `delta`, in place, to a point of the set: the nearest one, if there is one ball."""
        for centre, radius in self.balls:
            if centre is None:
                _project_(delta, self.low, self.high, radius)
            else:
                delta.sub_(centre)
                delta.mul_((radius / row_norms(delta, 1).clamp_(min=torch.finfo(delta.dtype).tiny)).clamp_(max=1))
                delta.add_(centre)
        return torch.clamp(delta, self.low, self.high, out=delta)

    def climb_(self, delta: Tensor, gradient: Tensor, step: float | Tensor) -> Tensor:
        """Step, in place, as far up as a step of this length within the bounds can, then project.

        Such a step moves the entry with the largest gradient to its bound, then the next one, until its length is used.
        """
        room = torch.where(gradient > 0, self.high - delta, delta - self.low).masked_fill_(gradient == 0, 0)
        order = gradient.abs().flatten(1).argsort(dim=1, descending=True)
        length = step.flatten(1) if isinstance(step, Tensor) and step.dim() else step
        moved = torch.empty_like(order, dtype=delta.dtype)
        moved.scatter_(1, order, spend_in_order(room.flatten(1).gather(1, order), length))
        return self.project_(delta.addcmul_(gradient.sign(), moved.view(delta.shape)))

    def near(self, centre: Tensor, radius: float | Tensor) -> "L1Set":
        """Intersect with the ball of `radius` around `centre`, which is first projected onto the set."""
        return L1Set(self.low, self.high, (*self.balls, (self.project_(centre.clone()), radius)))

    def noisy(self, centre: Tensor | None, radius: float | Tensor, generator: torch.Generator) -> Tensor:
        """Draw a point: `centre` (or zero) plus uniform noise from the ball of `radius`, projected."""
        entries = torch.rand(self.low.shape, generator=generator, dtype=self.low.dtype)
        rest = torch.rand((len(entries),) + (1,) * (entries.dim() - 1), generator=generator, dtype=entries.dtype)
        noise = scale_to_l1_ball(entries.to(self.low.device), rest.to(self.low.device), radius)
        return self.project_(noise if centre is None else noise.add_(centre))

    def widened(self, factor: float) -> "L1Set":
        """Return the set with the ball around zero alone, its radius times `factor`."""
        return L1Set(self.low, self.high, ((None, factor * self.balls[0][1]),))

    def rows(self, index: Tensor) -> "L1Set":
        """Return the set for these rows of the batch."""
        balls = tuple((take_rows(centre, index), take_rows(radius, index)) for centre, radius in self.balls)
        return L1Set(self.low.index_select(0, index), self.high.index_select(0, index), balls)

    def saturated(self, delta: Tensor) -> float | Late[float]:
        """Return the share of rows on the sphere around zero, up to a hundredth of its radius."""
        rows = max(1, len(delta))
        return late(lambda on: on / rows, (row_norms(delta, 1) >= 0.99 * self.balls[0][1]).sum())


def scale_to_l1_ball(entries: Tensor, rest: Tensor, radius: float | Tensor) -> Tensor:
    """Turn uniform numbers, in place, into uniform points of the L1 ball.

    Exponential numbers divided by their sum are uniform on a simplex. One more than there are entries, `rest` per row,
    makes that the whole ball instead of its surface. The sign and the size of an entry come from one uniform number.

    Args:
        entries: Uniform numbers in [0, 1], a row per point.
        rest: One more per row.
        radius: The radius of the ball.
    Returns:
        `entries`.
    Example:
        >>> point = scale_to_l1_ball(torch.tensor([[0.9, 0.3]]), torch.tensor([0.5]), 2.0)
        >>> bool(point.abs().sum() < 2), point.sign().tolist()
        (True, [[1.0, -1.0]])
    """
    entries.mul_(2).sub_(1)
    sizes = _exponential(entries.abs())
    total = row_norms(sizes, 1).add_(_exponential(rest.view(-1, *(1,) * (entries.dim() - 1))))
    return entries.sign_().mul_(sizes).mul_(radius / total.clamp_(min=torch.finfo(sizes.dtype).tiny))


def spend_in_order(amounts: Tensor, budget: float | Tensor) -> Tensor:
    """Take, per row, the amounts from left to right, the last one in part, until the budget is used.

    Args:
        amounts: What there is, >= 0.
        budget: What may be used, per row or for all.
    Returns:
        What is taken of each amount.
    Example:
        >>> spend_in_order(torch.tensor([[2.0, 2.0, 2.0]]), 3.0)
        tensor([[2., 1., 0.]])
    """
    before = torch.cat((torch.zeros_like(amounts[..., :1]), amounts[..., :-1].cumsum(-1)), -1)
    return torch.minimum((budget - before).clamp_(min=0), amounts)


def _project_(delta: Tensor, low: Tensor, high: Tensor, radius: float | Tensor) -> Tensor:
    """Project each row, in place, onto low <= d <= high, |d|_1 <= radius, where low <= 0 <= high.

    The nearest point has |d| = min(max(|delta| - λ, 0), u) for some λ >= 0, u the room in the direction of delta. Its
    norm falls with λ and is linear between knots: |delta| - u, where an entry leaves its bound, and |delta|, where it
    arrives at zero.
    """
    radius = radius.flatten(1) if isinstance(radius, Tensor) and radius.dim() else radius
    sizes, room = delta.abs().flatten(1), torch.where(delta > 0, high, -low).flatten(1)
    if sizes.device.type == "cpu" and not bool((torch.minimum(sizes, room).sum(1, keepdim=True) > radius).any()):
        return torch.clamp(delta, low, high, out=delta)
    new = sizes.sub(_threshold(sizes, room, radius)).clamp_(min=0)
    new = torch.minimum(new, room, out=new)
    new.mul_((radius / new.sum(1, keepdim=True).clamp_(min=torch.finfo(new.dtype).tiny)).clamp_(max=1))  # rounding
    return delta.sign_().mul_(new.view(delta.shape))


def _threshold(sizes: Tensor, room: Tensor, radius: float | Tensor) -> Tensor:
    """Return, per row, the smallest λ >= 0 with sum_i min(max(sizes_i - λ, 0), room_i) <= radius."""
    features = sizes.shape[1]
    leaves = (sizes - room).clamp_(min=0)
    knots, order = torch.cat((leaves, sizes), 1).sort(dim=1)
    falling = torch.where(order < features, 1, -1).cumsum(1)  # entries that fall after each knot
    norm = torch.minimum(sizes, room).sum(1, keepdim=True)
    norms = norm - (falling[:, :-1] * knots.diff(dim=1)).cumsum(1)  # at all knots but the first, 0
    last = (norms > radius).sum(1, keepdim=True).clamp_(max=2 * features - 2)  # the last knot where d is too long
    left, right = knots.gather(1, last), knots.gather(1, last + 1)
    falls, stays = (leaves <= left) & (sizes > left), leaves > left
    over = torch.where(falls, sizes, torch.where(stays, room, 0)).sum(1, keepdim=True) - radius
    λ = torch.clamp(over / falls.sum(1, keepdim=True).clamp_(min=1), left, right)
    return torch.where(norm > radius, λ, 0)


def _exponential(uniform: Tensor) -> Tensor:
    """Turn uniform numbers of [0, 1] into exponential ones."""
    return -torch.log1p(-uniform.clamp(max=1 - torch.finfo(uniform.dtype).eps))
