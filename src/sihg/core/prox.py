"""Closed proper convex functions: the value, the proximal map and the distance to the subdifferential, by blocks."""
# ruff: noqa: ARG002  (a separable prox need not know where blocks begin, nor a finite function how u was rounded)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from sihg.errors import InputError

Parameter = float | Tensor

_TINY = torch.finfo(torch.float32).tiny
_RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "finite": torch.isfinite,
    "finite and >= 0": lambda x: (x >= 0) & (x < math.inf),
    "finite and > 0": lambda x: (x > 0) & (x < math.inf),
    "a number < inf": lambda x: x < math.inf,
    "a number > -inf": lambda x: x > -math.inf,
}


class Convex(ABC):
    """A closed proper convex function h of one block; the first `batch` dimensions of a tensor count the blocks."""

    def value(self, u: Tensor, batch: int = 0) -> Tensor:
        """h(u), of the shape of the batch; infinite outside the domain."""
        return _rows(self._terms(u, batch, 0.0), batch).sum(-1)

    @abstractmethod
    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """argmin_u h(u) + ||u - z||^2 / (2 eta)."""

    def distance(self, u: Tensor, v: Tensor, batch: int = 0) -> Tensor:
        """min ||v - g|| over g in dh(u), of the shape of the batch; infinite outside the domain."""
        return _norm(_rows(self._residual(u, v, batch, 0.0), batch)).squeeze(-1)

    def scaled(self, factor: float) -> Scaled:
        """factor h(u)."""
        return Scaled(self, factor)

    def translated(self, shift: Parameter) -> Translated:
        """h(u - shift)."""
        return Translated(self, shift)

    @abstractmethod
    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        """Any entries that add up, block by block, to h(u); slack bounds the rounding that u has already suffered."""

    @abstractmethod
    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        """Any entries with the norm, block by block, of v minus its projection on dh(u)."""


@dataclass(frozen=True, eq=False)
class Scaled(Convex):
    """factor h(u), factor > 0."""

    function: Convex
    factor: float

    def __post_init__(self) -> None:
        _check(self, factor="finite and > 0")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """The prox of h with the step factor eta."""
        return self.function.prox(z, eta * self.factor, batch)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return self.factor * self.function._terms(u, batch, slack)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return self.factor * self.function._residual(u, v / self.factor, batch, slack)


@dataclass(frozen=True, eq=False)
class Translated(Convex):
    """h(u - shift)."""

    function: Convex
    shift: Parameter

    def __post_init__(self) -> None:
        _check(self, shift="finite")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """The prox of h at z - shift, plus shift."""
        return self.shift + self.function.prox(z - self.shift, eta, batch)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        p = u - self.shift
        return self.function._terms(p, batch, slack + _rounding(u, p))

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        p = u - self.shift
        return self.function._residual(p, v, batch, slack + _rounding(u, p))


@dataclass(frozen=True, eq=False)
class Zero(Convex):
    """h(u) = 0."""

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """z itself, not a copy."""
        return z

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return torch.zeros_like(u)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return v


@dataclass(frozen=True, eq=False)
class ElasticNet(Convex):
    """h(u) = l1 ||u||_1 + (l2 / 2) ||u||^2."""

    l1: float
    l2: float

    def __post_init__(self) -> None:
        _check(self, l1="finite and >= 0", l2="finite and >= 0")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """sgn(z) (|z| - eta l1)_+ / (1 + eta l2)."""
        return softshrink(z, eta * self.l1) / (1.0 + eta * self.l2)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return self.l1 * u.abs() + (0.5 * self.l2) * u.square()

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return torch.where(u == 0, softshrink(v, self.l1), v - self.l1 * u.sign() - self.l2 * u)


@dataclass(frozen=True, eq=False)
class L1(ElasticNet):
    """h(u) = weight ||u||_1."""

    l1: float = field(init=False, repr=False)
    l2: float = field(init=False, repr=False, default=0.0)
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check(self, weight="finite and >= 0")
        object.__setattr__(self, "l1", self.weight)

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """sgn(z) (|z| - eta weight)_+."""
        return softshrink(z, eta * self.weight)


@dataclass(frozen=True, eq=False)
class SquaredL2(Convex):
    """h(u) = (weight / 2) ||u - centre||^2."""

    weight: float = 1.0
    centre: Parameter = 0.0

    def __post_init__(self) -> None:
        _check(self, weight="finite and >= 0", centre="finite")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """(z + eta weight centre) / (1 + eta weight)."""
        a = eta * self.weight
        if isinstance(self.centre, Tensor) and self.centre.dtype == z.dtype:
            return torch.lerp(z, self.centre, a / (1.0 + a))  # the same in one pass
        return _plus(z, self.centre, a) / (1.0 + a)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return (0.5 * self.weight) * (u - self.centre).square()

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return v - self.weight * (u - self.centre)


@dataclass(frozen=True, eq=False)
class Box(Convex):
    """The indicator of lower <= u <= upper; a side may be infinite."""

    lower: Parameter
    upper: Parameter

    def __post_init__(self) -> None:
        _check(self, lower="a number < inf", upper="a number > -inf")
        lower, upper = self.lower, self.upper
        if (wrong := _tensor(lower) > _tensor(upper)).any():
            low, high = (_tensor(side).expand_as(wrong)[wrong][0].item() for side in (lower, upper))
            raise InputError(f"Box: lower must be <= upper, got lower={low}, upper={high}: swap them")
        # torch.clamp takes two numbers or two tensors, not one of each.
        if isinstance(upper, Tensor) and not isinstance(lower, Tensor):
            object.__setattr__(self, "lower", upper.new_tensor(lower))
        if isinstance(lower, Tensor) and not isinstance(upper, Tensor):
            object.__setattr__(self, "upper", lower.new_tensor(upper))

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """min{max{z, lower}, upper}."""
        return torch.clamp(z, self.lower, self.upper)  # type: ignore[arg-type]

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return _indicator((u >= self.lower - slack) & (u <= self.upper + slack), u)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        # clamp puts u exactly on a face, so a face is an equality unless a translation has rounded u.
        r = torch.where(u <= self.lower + slack, v.clamp(min=0.0), v)
        r = torch.where(u >= self.upper - slack, r.clamp(max=0.0), r)
        return r + self._terms(u, batch, slack)


@dataclass(frozen=True, eq=False)
class NonNegative(Box):
    """The indicator of u >= 0."""

    lower: Parameter = field(init=False, repr=False, default=0.0)
    upper: Parameter = field(init=False, repr=False, default=math.inf)


@dataclass(frozen=True, eq=False)
class LinfBall(Box):
    """The indicator of ||u - centre||_inf <= radius."""

    lower: Parameter = field(init=False, repr=False)
    upper: Parameter = field(init=False, repr=False)
    radius: float
    centre: Parameter = 0.0

    def __post_init__(self) -> None:
        _check(self, radius="finite and >= 0", centre="finite")
        object.__setattr__(self, "lower", self.centre - self.radius)
        object.__setattr__(self, "upper", self.centre + self.radius)


@dataclass(frozen=True, eq=False)
class L2Ball(Convex):
    """The indicator of ||u - centre|| <= radius."""

    radius: float
    centre: Parameter = 0.0

    def __post_init__(self) -> None:
        _check(self, radius="finite and >= 0", centre="finite")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """centre + (z - centre) min{1, radius / ||z - centre||}."""
        y = _rows(_plus(z, self.centre, -1.0), batch)
        size = torch.linalg.vector_norm(y, math.inf, dim=-1, keepdim=True).clamp(min=1.0) if y.numel() else 1.0
        norm = _norm(y / size) * size  # squares of a large z would overflow
        y = y / (norm.clamp(min=max(self.radius, _TINY)) / self.radius)  # _TINY: radius 0 must not give 0 / 0
        return _plus(y.reshape(z.shape), self.centre)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        y, tolerance = self._centred(u, batch, slack)
        return _indicator(_norm(y) <= self.radius + tolerance, u)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        """v inside, v - (<v, y>)_+ y on the sphere with y = (u - centre) / ||u - centre||, 0 if radius = 0."""
        y, tolerance = self._centred(u, batch, slack)
        norm, v = _norm(y), _rows(v, batch)
        y = y / norm.clamp(min=_TINY)
        r = v - (v * y).sum(-1, keepdim=True).clamp(min=0.0) * y if self.radius else torch.zeros_like(v)
        return torch.where(norm >= self.radius - tolerance, r, v) + self._terms(u, batch, slack)

    def _centred(self, u: Tensor, batch: int, slack: Parameter) -> tuple[Tensor, Tensor]:
        y = u - self.centre
        rounding = _rows(slack + _rounding(u, y), batch)
        return _rows(y, batch), _norm(rounding) * _tolerance(rounding)


@dataclass(frozen=True, eq=False)
class Simplex(Convex):
    """The indicator of u >= 0, sum_j u_j = total, total > 0."""

    total: float = 1.0

    def __post_init__(self) -> None:
        _check(self, total="finite and > 0")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """(z - t)_+ with t = max_k (z_(1) + ... + z_(k) - total) / k, z_(1) >= z_(2) >= ..."""
        y = _rows(z, batch)
        y = y - y.amax(-1, keepdim=True)  # what stays positive is now of the size of total: a large z loses no digits
        sums = y.sort(dim=-1, descending=True).values.cumsum(-1)
        u = torch.relu(y - ((sums - self.total) / _ranks(y)).amax(-1, keepdim=True))
        return (u / (u.sum(-1, keepdim=True) / self.total)).reshape(z.shape)  # undoes the rounding of a long cumsum

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        rounding, u = _rows(slack + _rounding(u, u), batch), _rows(u, batch)
        gap, tolerance = u.sum(-1) - self.total, rounding.sum(-1) * _tolerance(rounding)
        # Rounding is monotone, so a translated prox cannot turn negative: the sign needs no tolerance.
        return _indicator((u >= 0).all(-1) & (gap.abs() <= tolerance), u).unsqueeze(-1)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        """v - t on the support, (v - t)_+ off it, with the t that makes the norm smallest."""
        support, v = _rows(u, batch) > 0, _rows(v, batch)
        v = v - v.amax(-1, keepdim=True)
        # The best t is the mean of v over the support and the k largest entries off it: the largest such mean over k.
        # Ranks below the size of the support give its sum, <= 0 after the shift, over too few: never the largest.
        size, ranks = support.sum(-1, keepdim=True), _ranks(v)
        off = v.masked_fill(support, math.inf).sort(dim=-1, descending=True).values.masked_fill(ranks <= size, 0.0)
        r = v - ((off.cumsum(-1) + (v * support).sum(-1, keepdim=True)) / ranks).amax(-1, keepdim=True)
        return torch.where(support, r, r.clamp(min=0.0)) + self._terms(u, batch, slack)


def _rows(x: Tensor, batch: int) -> Tensor:
    """One flat row per block; a block may be a number."""
    return x.unsqueeze(-1).flatten(batch)


def _norm(rows: Tensor) -> Tensor:
    """||row||, summed in a cascade: on a CPU vector_norm adds one by one and loses up to d eps / 10 of d entries."""
    return rows.square().sum(-1, keepdim=True).sqrt()


def _ranks(rows: Tensor) -> Tensor:
    return torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)


def _plus(x: Tensor, c: Parameter, alpha: float = 1.0) -> Tensor:
    """x + alpha c, free of charge for the default c = 0.0."""
    return torch.add(x, c, alpha=alpha) if isinstance(c, Tensor) or c else x


def _indicator(inside: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(inside.shape).masked_fill(~inside, math.inf)


def _rounding(u: Tensor, p: Tensor) -> Tensor:
    """A bound on the error of p = u - shift, where u itself was rounded from shift + p."""
    return torch.finfo(u.dtype).eps * (u.abs() + p.abs())


def _tolerance(rows: Tensor) -> float:
    """By how many roundings of its d entries a norm or a sum may be off.

    Ours are off by less than 10 for any d; sqrt(d) makes room for points from elsewhere (softmax, normalize), which
    add plainly.
    """
    return 4.0 * math.sqrt(rows.shape[-1])


def _tensor(value: Parameter) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _check(function: Convex, **rules: str) -> None:
    for name, rule in rules.items():
        x = _tensor(getattr(function, name))
        if (wrong := ~_RULES[rule](x)).any():
            got = f"{type(function).__name__}: {name} must be {rule}, got {x[wrong][0].item()}"
            raise InputError(f"{got}: choose a {name} that is")
