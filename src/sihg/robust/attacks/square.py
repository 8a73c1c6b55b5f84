"""Square Attack (Andriushchenko et al., 2020): random search in square windows, without gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.parse import ORDERS
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.base import Attack, check_counts
from sihg.robust.attacks.random_models import ONCE
from sihg.robust.attacks.search import Search, true_places
from sihg.robust.gradients import margins, misclassified

QUERIES = 5000  # as in AutoAttack
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000)  # queries of 5000 after which p halves
TILES = 5  # per side of the sample, at the start of the L2 search
NUMBERS_PER_DRAW = 512  # per row


@dataclass(frozen=True, kw_only=True, eq=False)
class Square(Attack):
    """Change one window of the sample at a time, and keep the change where the margin falls; needs no gradient.

    A sample is broken when it is misclassified at any query. It leaves the batch at once, and later runs see survivors
    only. Where nothing is found, x_adv is the point of smallest margin. In linf many windows have the drawn values
    already; on a CPU such a query takes no pass, as the answer is known.

    A sample has channels, rows and columns: a sample of a table is one row, and so is each channel of a sequence
    (c, l). All dimensions between the channels and the last one count as rows, one below the other. Where a square
    does not fit into the sample, the window is a rectangle of about the same area.

    Args:
        queries: Queries of a run, each a forward pass or less, the start included.
        restarts: Runs, the first included.
        p_init: The share of the sample that the first windows cover; it shrinks as the queries go on.
    Raises:
        InputError: If a setting is out of range.
    Example:
        >>> attack = Square(eps=0.1, queries=20)
        >>> attack(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    searches_fast: ClassVar[bool] = True
    uses_gradients: ClassVar[bool | None] = False
    is_black_box: ClassVar[bool] = True

    queries: int = QUERIES
    restarts: int = 1
    p_init: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(queries=self.queries, restarts=self.restarts)
        if not 0 < self.p_init <= 1:
            raise InputError("p-init-range", p_init=self.p_init)

    @property
    def uses_margin(self) -> bool:
        """Whether it compares logits: it lowers the margin."""
        return True

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return a forward pass per query, and one at the sample; in linf it is less."""
        return (1 + self.restarts * self.queries) / 3

    def search(self, search: Search, seed: int) -> None:
        """Run R times, each on the rows that are not broken yet."""
        search.record_clean()
        for run in range(self.restarts):
            rows = search.unbroken()
            if not len(rows):
                return
            self._descend(search, rows, seed, run)

    def _descend(self, search: Search, rows: Rows, seed: int, run: int) -> None:
        """Follow Algorithm 1."""
        c, h, w = planes(rows.x.shape[1:])
        start, change = {
            "linf": (self._stripes, self._corner_),
            "l2": (self._tiles, self._bump_),
            "l1": (self._tiles, self._sparse_bump_),
        }[self.norm]
        on_cpu = rows.x.device.type == "cpu"  # other devices would be waited for
        skip = self.norm == "linf" and search.draws == ONCE and on_cpu
        ahead = max(1, NUMBERS_PER_DRAW // (5 + c))
        at = Run.at(search, rows, start(rows, seed, run))
        for query in range(1, self.queries):
            at = at.without_broken(search)
            if not len(at.rows):
                return
            block, turn = divmod(query - 1, ahead)
            if turn == 0:
                sides = [self._sides(later, h, w) for later in range(query, query + ahead)]
                at.draw(sides, at.rows.draw_uniform((ahead, 5 + c), seed, f"square {block}", run))
                at.unused = self._unused(at.point - at.x)
            at.accept(search, change(at, turn, *sides[turn]), skip=skip)
        search.record(at.rows, at.point.view_as(at.rows.x), at.logits)

    def _sides(self, query: int, h: int, w: int) -> tuple[int, int]:
        """Return the height and width of the window; but for linf they are odd and at least 3, where there is room."""
        p = self.p_init / 2 ** sum(QUERIES * query // self.queries > bound for bound in HALVINGS)

        def length(exact: float) -> int:
            return max(1, round(exact)) if self.norm == "linf" else max(3, round(exact)) | 1

        side = length(math.sqrt(p * h * w))
        tall = length(p * h) if side > w else side
        wide = length(p * w) if side > h else side
        return min(tall, h), min(wide, w)

    def _stripes(self, rows: Rows, seed: int, run: int) -> Tensor:
        """Set each column of each channel to one of the two ends of what is allowed."""
        c, h, w = planes(rows.x.shape[1:])
        stripes = _signs(rows.draw_uniform((c, 1, w), seed, "square start", run)).mul_(self.eps)
        return rows.feasible.project_(stripes.repeat(1, 1, h, 1).view(rows.x.shape))

    def _corner_(self, at: "Run", turn: int, tall: int, wide: int) -> "Change":
        """Set each channel of a window to one of its two ends (Algorithm 2)."""
        window, _ = at.windows(turn, tall, wide).chunk(2, 2)
        old, low, high = (points.gather(2, window) for points in (at.point, at.low, at.high))
        new = torch.where(at.sign[:, turn] < 0, low, high)
        at.point.scatter_(2, window, new)
        return Change(window, old, new, at.unused)

    def _tiles(self, rows: Rows, seed: int, run: int) -> Tensor:
        """Make a grid of bumps of equal length and random sign: for L2 that of the ball together, for L1 at least."""
        c, h, w = planes(rows.x.shape[1:])
        (down, tall), (across, wide) = ((min(TILES, side), max(1, side // TILES)) for side in (h, w))
        u = rows.draw_uniform((1 + c, down * across), seed, "square start", run)
        bumps = _signs(u[:, 1:, :, None]) * _bumps(u[:, 0], tall, wide, ORDERS[self.norm])[:, None]
        grid = bumps.view(-1, c, down, across, tall, wide).transpose(3, 4).flatten(4).flatten(2, 3)
        top, left = (h - down * tall) // 2, (w - across * wide) // 2
        delta = rows.x.new_zeros(len(rows), c, h, w)
        delta[:, :, top : top + down * tall, left : left + across * wide] = grid
        count = c * down * across
        delta.mul_(self.eps / math.sqrt(count) if self.norm == "l2" else max(1.0, self.eps / count))
        return rows.feasible.project_(delta.view(rows.x.shape))

    def _bump_(self, at: "Run", turn: int, tall: int, wide: int) -> "Change":
        """Put a bump into one window (Algorithm 3), as long as both windows were, and as what was unused of the radius.

        That makes the whole length eps again, so that only the bounds in the window remain to project onto.
        """
        both = at.windows(turn, tall, wide)
        old, one = at.point.gather(2, both), both.chunk(2, 2)[0]
        x, before, other = at.clear(both)
        available = _squares(before) + _squares(other) + at.unused / at.x.shape[1]
        delta = self._mix(at, turn, tall, wide, before) * available.clamp(min=0).sqrt()
        new = torch.clamp(x + delta, at.low.gather(2, one), at.high.gather(2, one))
        at.point.scatter_(2, one, new)
        unused = (available - _squares(new - x)).sum(1, keepdim=True)
        return Change(both, old, at.point.gather(2, both), unused)

    def _sparse_bump_(self, at: "Run", turn: int, tall: int, wide: int) -> "Change":
        """Put a steep bump into one window, as long as all channels could make it, and project the whole sample.

        That keeps the largest entries alone, as Croce and Hein (2021) do.
        """
        both, old = at.windows(turn, tall, wide), at.point.clone()
        x, before, other = at.clear(both)
        channels = at.x.shape[1]
        available = _sums(before) + _sums(other) + at.unused.clamp(min=0) / channels
        delta = self._mix(at, turn, tall, wide, before) * (channels * available)
        at.point.scatter_(2, both.chunk(2, 2)[0], x + delta)
        moved = at.rows.feasible.project_((at.point - at.x).view_as(at.rows.x)).view_as(at.x)
        at.point = at.x + moved
        everywhere = torch.arange(at.x.shape[2], device=at.x.device).expand_as(at.x)
        return Change(everywhere, old, at.point.clone(), self._unused(moved))

    def _mix(self, at: "Run", turn: int, tall: int, wide: int, before: Tensor) -> Tensor:
        """Add a bump of length 1 to what was in the window, scaled to length 1, and scale the sum likewise."""
        order = ORDERS[self.norm]
        bump = at.sign[:, turn] * _bumps(at.pick[:, turn], tall, wide, order)
        rounding = math.sqrt(torch.finfo(before.dtype).eps)  # all that remains of opposite bumps
        return _unit(bump + _unit(before, order), order, rounding)

    def _unused(self, delta: Tensor) -> Tensor:
        """Return what a perturbation (n, channels, places) leaves of eps, for L2 of eps^2."""
        power = 1 if self.norm == "l1" else 2
        lengths: Tensor = torch.linalg.vector_norm(delta, ord=power, dim=(1, 2), keepdim=True)
        return self.eps**power - lengths**power


class Change(NamedTuple):
    """A change of some places, (n, channels, places): the values before and after, and what it leaves of the radius."""

    window: Tensor
    old: Tensor
    new: Tensor
    unused: Tensor


@dataclass
class Run:
    """A run on rows that are not broken: points as (n, channels, places), and the draws for the next queries."""

    rows: Rows
    x: Tensor
    low: Tensor  # the lowest and highest point allowed
    high: Tensor
    point: Tensor  # the best so far
    logits: Tensor  # at the point
    margin: Tensor
    unused: Tensor  # of eps, for L2 of eps^2, at the point
    corner: Tensor  # of two windows per query
    pick: Tensor
    sign: Tensor

    @classmethod
    def at(cls, search: Search, rows: Rows, delta: Tensor) -> "Run":
        """Start at `delta`."""
        feasible, point = rows.feasible, rows.x + delta
        logits, none = search.compute_logits(rows, point, exact=False), rows.x.new_empty(len(rows))
        c, h, w = planes(rows.x.shape[1:])
        x, low, high, point = (
            points.reshape(-1, c, h * w) for points in (rows.x, rows.x + feasible.low, rows.x + feasible.high, point)
        )
        return cls(rows, x, low, high, point, logits, margins(logits, rows.y), none, none, none, none)

    def without_broken(self, search: Search) -> "Run":
        """Return the run without the rows that are broken now."""
        held = search.record_broken(self.rows, self.point.view_as(self.rows.x), self.logits)
        if held is None:
            return self
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        kept = {name: value.index_select(0, held) for name, value in tensors.items()}
        return Run(rows=self.rows.take(held), **kept)

    def draw(self, sides: Sequence[tuple[int, int]], u: Tensor) -> None:
        """Turn numbers in [0, 1) into windows, one pair per pair of sides."""
        _, h, w = planes(self.rows.x.shape[1:])
        room = [[[h - tall + 1, w - wide + 1]] for tall, wide in sides]
        top, left = (u[:, :, :4].unflatten(2, (2, 2)) * u.new_tensor(room, dtype=torch.float64)).long().unbind(3)
        self.corner, self.pick, self.sign = top * w + left, u[:, :, 4:5], _signs(u[:, :, 5:, None])

    def windows(self, turn: int, tall: int, wide: int) -> Tensor:
        """Return the places of both windows."""
        window = _places(tall, wide, self.rows.x.shape[-1]).to(self.corner.device)
        return (self.corner[:, turn, :, None] + window).flatten(1)[:, None].expand(-1, self.x.shape[1], -1)

    def clear(self, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Set both windows of the point to x; return x in the first one, and the perturbations that were in each.

        The second one is returned without the part in the first window.
        """
        one, two = both.chunk(2, 2)
        x_one, x_two = self.x.gather(2, one), self.x.gather(2, two)
        before = self.point.gather(2, one) - x_one
        self.point.scatter_(2, one, x_one)
        other = self.point.gather(2, two) - x_two
        self.point.scatter_(2, two, x_two)
        return x_one, before, other

    def accept(self, search: Search, change: Change, *, skip: bool) -> None:
        """Keep the change, already made, where the margin falls or the class is wrong (also at a tie); else undo it.

        With `skip`, rows whose point is the same as before are not evaluated: nothing would change.
        """
        moved = true_places((change.new != change.old).flatten(1).any(1)) if skip else None
        point = self.point.view_as(self.rows.x)
        if moved is None or len(moved) == len(self.rows):
            logits = search.compute_logits(self.rows, point, exact=False)
        elif len(moved):
            new = search.compute_logits_of(self.rows, moved, point.index_select(0, moved))
            logits = self.logits.index_copy(0, moved, new)
        else:
            return
        margin = margins(logits, self.rows.y)
        falls = (margin < self.margin) | misclassified(logits, self.rows.y)
        self.logits, self.margin = torch.where(falls[:, None], logits, self.logits), torch.minimum(margin, self.margin)
        falls = falls[:, None, None]
        self.point.scatter_(2, change.window, torch.where(falls, change.new, change.old))
        self.unused = torch.where(falls, change.unused, self.unused)


def planes(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the channels, rows and columns of a sample."""
    return (shape[0] if len(shape) > 1 else 1), math.prod(shape[1:-1]), shape[-1]


@lru_cache
def _places(tall: int, wide: int, w: int) -> Tensor:
    """Return the places of a window in the corner of a plane of width w."""
    return (torch.arange(tall)[:, None] * w + torch.arange(wide)).flatten()


@lru_cache
def eta(tall: int, wide: int, order: float = 2) -> Tensor:
    """Return both bumps for a window, (2, tall * wide), of length 1: upper half against lower, left against right."""
    upright = torch.cat([_pyramid(tall // 2, wide, order), -_pyramid(tall - tall // 2, wide, order)])
    lying = torch.cat([_pyramid(wide // 2, tall, order), -_pyramid(wide - wide // 2, tall, order)]).T
    return _unit(torch.stack([upright.flatten(), lying.flatten()]), order)


def _pyramid(tall: int, wide: int, order: float) -> Tensor:
    """Return equation 2, scaled to length 1: rings around the middle, the k-th 1/k^2 higher than the ring around it.

    For L1, which is spent better on few entries, it is 1/k^4.
    """
    down, across = ((torch.arange(side) - side // 2).abs() for side in (tall, wide))
    power = 2 if order == 2 else 4
    heights = (1 / torch.arange(1, 2 + max(tall, wide) // 2).double() ** power).flip(0).cumsum(0).flip(0)
    return _unit(heights[torch.maximum(down[:, None], across)].flatten(), order).view(tall, wide)


def _bumps(u: Tensor, tall: int, wide: int, order: float) -> Tensor:
    """Choose one of the two bumps for each number in [0, 1)."""
    return eta(tall, wide, order).to(u)[(u < 0.5).long()]


def _squares(windows: Tensor) -> Tensor:
    return windows.square().sum(-1, keepdim=True)


def _sums(windows: Tensor) -> Tensor:
    return windows.abs().sum(-1, keepdim=True)


def _unit(windows: Tensor, order: float, least: float = 0.0) -> Tensor:
    """Scale to length 1; set to zero what is not longer than `least`."""
    lengths = torch.linalg.vector_norm(windows, ord=order, dim=-1, keepdim=True)
    return torch.where(lengths > least, windows / lengths, 0)


def _signs(u: Tensor) -> Tensor:
    return torch.where(u < 0.5, -1.0, 1.0).to(u)
