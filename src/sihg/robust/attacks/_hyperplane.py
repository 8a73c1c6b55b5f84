"""Shortest steps to a hyperplane within a box."""

import torch
from torch import Tensor

from sihg.robust.threat import spend_in_order


def shortest_steps(w: Tensor, c: Tensor, low: Tensor, high: Tensor, norm: str) -> Tensor:
    """Return the smallest d of each row with w d = c and low <= d <= high, where low <= 0 <= high are finite.

    Let u be the room in the direction in which w d grows (c > 0) or falls (c < 0). Then |d| = min(λ, u) for linf,
    except where w = 0, and |d| = min(λ |w|, u) for l2. For l1, |d| = u in the entries with the largest |w|, in the
    last of them in part. Where c is out of reach, d is the nearest corner of the box.
    """
    tiny, most = torch.finfo(w.dtype).tiny, torch.finfo(w.dtype).max
    a = w.abs()
    scale = a.amax(-1, keepdim=True).clamp_(min=tiny)  # else the squares of a small w would vanish
    a, c = a.div_(scale), (c.unsqueeze(-1) / scale).clamp_(-most, most)
    sign = w.sign() * c.sign()
    u, c = torch.maximum(sign * low, sign * high), c.abs_()
    if norm == "linf":
        return torch.minimum(_level(a, u, c), u).mul_(sign)
    if norm == "l1":
        order = a.argsort(dim=-1, descending=True).expand(u.shape)
        spent = spend_in_order((a * u).gather(-1, order), c)
        d = torch.empty_like(u).scatter_(-1, order, spent).div_(a.clamp(min=tiny))
        return torch.minimum(d, u).mul_(sign)
    λ = _level(a * a, u / a.clamp(min=tiny), c)
    return torch.minimum(a * λ, u).mul_(sign)


def _level(g: Tensor, knots: Tensor, c: Tensor) -> Tensor:
    """Solve sum_i g_i min(λ, knots_i) = c for λ, which is huge if the sum stays below c.

    The sum is concave in λ and linear between knots. So Newton's method from 0 never goes too far, and ends after a
    few steps, once a step passes no knot. Other devices than a CPU would be waited for at each of them; they sort.
    """
    if g.device.type != "cpu":
        return _level_by_sorting(g, knots, c)
    most, buffer = torch.finfo(g.dtype).max, torch.empty_like(knots)
    before = torch.gt(knots, 0, out=buffer).mul_(g).sum(-1, keepdim=True)
    λ = torch.where(before > 0, c / before, most).clamp_(max=most)
    while True:
        slope = torch.gt(knots, λ, out=buffer).mul_(g).sum(-1, keepdim=True)
        if not bool((slope < before).any()):
            return λ
        short = c - torch.minimum(knots, λ, out=buffer).mul_(g).sum(-1, keepdim=True)
        λ, before = torch.where(slope > 0, λ + short.clamp_(min=0) / slope, most).clamp_(max=most), slope


def _level_by_sorting(g: Tensor, knots: Tensor, c: Tensor) -> Tensor:
    """Solve the same without asking for a value: find the first knot at which the sum reaches c."""
    most = torch.finfo(g.dtype).max
    knots, order = knots.clamp(max=most).sort(dim=-1)
    g = g.expand(knots.shape).gather(-1, order)
    spent = (g * knots).cumsum(-1)  # by the entries up to each knot
    rest = g.flip(-1).cumsum(-1).flip(-1)  # the slope before each knot
    reached = spent + knots * (rest - g)
    first = (reached < c).sum(-1, keepdim=True)
    place = first.clamp(max=knots.shape[-1] - 1)
    before = torch.where(place > 0, spent.gather(-1, (place - 1).clamp(min=0)), 0.0)
    slope = rest.gather(-1, place)
    λ = torch.where(slope > 0, (c - before).clamp(min=0) / slope, most)
    return torch.where(first < knots.shape[-1], λ, most).clamp(max=most)
