"""The way to a hyperplane within a box."""

import torch
from torch import Tensor


def shortest(w: Tensor, c: Tensor, low: Tensor, high: Tensor, norm: str) -> Tensor:
    """The smallest d of each row with w d = c and low <= d <= high, where low <= 0 <= high are finite.

    With u the room in the direction in which w d grows (c > 0) or falls (c < 0), the solution has the entries
    |d| = min(λ, u) for linf, where those with w = 0 stay, and min(λ |w|, u) for l2. Where c is out of reach, d is the
    corner of the box that comes closest.
    """
    tiny, most = torch.finfo(w.dtype).tiny, torch.finfo(w.dtype).max
    a = w.abs()
    scale = a.amax(-1, keepdim=True).clamp_(min=tiny)  # else the squares of a small w would vanish
    a, c = a.div_(scale), (c.unsqueeze(-1) / scale).clamp_(-most, most)
    sign = w.sign() * c.sign()
    u, c = torch.maximum(sign * low, sign * high), c.abs_()
    if norm == "linf":
        return torch.minimum(_level(a, u, c), u).mul_(sign)
    λ = _level(a * a, u / a.clamp(min=tiny), c)
    return torch.minimum(a * λ, u).mul_(sign)


def _level(g: Tensor, knots: Tensor, c: Tensor) -> Tensor:
    """The λ with sum_i g_i min(λ, knots_i) = c, or a huge one if the sum stays below c.

    The sum is concave in λ and linear between knots. So Newton's method from 0 never goes too far, and is at the
    solution once a step has passed no knot; a few steps do.
    """
    most, each = torch.finfo(g.dtype).max, torch.empty_like(knots)
    before = torch.gt(knots, 0, out=each).mul_(g).sum(-1, keepdim=True)
    λ = torch.where(before > 0, c / before, most).clamp_(max=most)
    while True:
        slope = torch.gt(knots, λ, out=each).mul_(g).sum(-1, keepdim=True)
        if not bool((slope < before).any()):
            return λ
        short = c - torch.minimum(knots, λ, out=each).mul_(g).sum(-1, keepdim=True)
        λ, before = torch.where(slope > 0, λ + short.clamp_(min=0) / slope, most).clamp_(max=most), slope
