"""Closed proper convex functions: the value, the proximal map and the distance to the subdifferential, per block."""
# ruff: noqa: ARG002  (a separable prox does not use `batch`, a finite function does not use `slack`)

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
    r"""A closed proper convex function h of one block of variables; the base of every f and g.

    $$\operatorname{prox}_h^\eta(z) = \operatorname{argmin}_u\ h(u) + \frac{1}{2\eta} \|u - z\|^2$$

    The first `batch` dimensions of a tensor number the blocks; the other dimensions belong to one block. A subclass
    defines `prox`, `_terms` and `_residual`. A parameter that is not as its `Args:` say raises InputError.

    Example:
        >>> h = L1(2.0)
        >>> h.value(torch.tensor([[1.0, -1.0], [0.0, 3.0]]), batch=1)
        tensor([4., 6.])
        >>> h.translated(5.0).scaled(0.5).prox(torch.tensor([5.0, 9.0]), 1.0)
        tensor([5., 8.])
    """

    def value(self, u: Tensor, batch: int = 0) -> Tensor:
        """Return h(u) per block; infinite outside the domain."""
        return _rows(self._terms(u, batch, 0.0), batch).sum(-1)

    @abstractmethod
    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return prox_h^eta(z) = argmin_u h(u) + ||u - z||^2 / (2 eta)."""

    def distance(self, u: Tensor, v: Tensor, batch: int = 0) -> Tensor:
        """Return min ||v - g|| over g in the subdifferential dh(u), per block; infinite outside the domain."""
        return _norm(_rows(self._residual(u, v, batch, 0.0), batch)).squeeze(-1)

    def scaled(self, factor: float) -> Scaled:
        """Return the function u -> factor h(u)."""
        return Scaled(self, factor)

    def translated(self, shift: Parameter) -> Translated:
        """Return the function u -> h(u - shift)."""
        return Translated(self, shift)

    @abstractmethod
    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        """Return entries whose sum per block is h(u); `slack` bounds the rounding error that u already has."""

    @abstractmethod
    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        """Return entries whose norm per block is that of v minus its projection onto dh(u)."""


@dataclass(frozen=True, eq=False)
class Scaled(Convex):
    """The function factor h(u), factor > 0; made by `Convex.scaled`."""

    function: Convex
    factor: float

    def __post_init__(self) -> None:
        _check(self, factor="finite and > 0")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return prox_h^(factor eta)(z)."""
        return self.function.prox(z, eta * self.factor, batch)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return self.factor * self.function._terms(u, batch, slack)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return self.factor * self.function._residual(u, v / self.factor, batch, slack)


@dataclass(frozen=True, eq=False)
class Translated(Convex):
    """The function h(u - shift); made by `Convex.translated`."""

    function: Convex
    shift: Parameter

    def __post_init__(self) -> None:
        _check(self, shift="finite")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return shift + prox_h^eta(z - shift)."""
        return self.shift + self.function.prox(z - self.shift, eta, batch)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        p = u - self.shift
        return self.function._terms(p, batch, slack + _rounding(u, p))

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        p = u - self.shift
        return self.function._residual(p, v, batch, slack + _rounding(u, p))


@dataclass(frozen=True, eq=False)
class Zero(Convex):
    """The function h(u) = 0.

    Example:
        >>> Zero().prox(torch.tensor([3.0]), 1.0)
        tensor([3.])
    """

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return z itself, not a copy."""
        return z

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return torch.zeros_like(u)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return v


@dataclass(frozen=True, eq=False)
class ElasticNet(Convex):
    """The function h(u) = l1 ||u||_1 + (l2 / 2) ||u||^2.

    Args:
        l1: The weight of the 1-norm, finite and >= 0.
        l2: The weight of the squared 2-norm, finite and >= 0.
    Example:
        >>> ElasticNet(1.0, 1.0).prox(torch.tensor([3.0, 0.5]), 1.0)
        tensor([1., 0.])
    """

    l1: float
    l2: float

    def __post_init__(self) -> None:
        _check(self, l1="finite and >= 0", l2="finite and >= 0")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return sgn(z) (|z| - eta l1)_+ / (1 + eta l2)."""
        return softshrink(z, eta * self.l1) / (1.0 + eta * self.l2)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return self.l1 * u.abs() + (0.5 * self.l2) * u.square()

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return torch.where(u == 0, softshrink(v, self.l1), v - self.l1 * u.sign() - self.l2 * u)


@dataclass(frozen=True, eq=False)
class L1(ElasticNet):
    """The function h(u) = weight ||u||_1, whose proximal map is soft thresholding.

    Args:
        weight: Finite and >= 0.
    Example:
        >>> L1(1.0).prox(torch.tensor([3.0, 0.5]), 1.0)
        tensor([2., 0.])
    """

    l1: float = field(init=False, repr=False)
    l2: float = field(init=False, repr=False, default=0.0)
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check(self, weight="finite and >= 0")
        object.__setattr__(self, "l1", self.weight)

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return sgn(z) (|z| - eta weight)_+."""
        return softshrink(z, eta * self.weight)


@dataclass(frozen=True, eq=False)
class SquaredL2(Convex):
    """The function h(u) = (weight / 2) ||u - centre||^2.

    Args:
        weight: Finite and >= 0.
        centre: A number, or a tensor that broadcasts to u.
    Example:
        >>> SquaredL2(1.0, centre=4.0).prox(torch.tensor([0.0]), 1.0)
        tensor([2.])
    """

    weight: float = 1.0
    centre: Parameter = 0.0

    def __post_init__(self) -> None:
        _check(self, weight="finite and >= 0", centre="finite")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return (z + eta weight centre) / (1 + eta weight)."""
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
    """The indicator of lower <= u <= upper: 0 inside, infinite outside.

    Args:
        lower: A number or a tensor, nowhere above `upper`; -inf for no bound.
        upper: A number or a tensor; inf for no bound.
    Example:
        >>> Box(0.0, 1.0).prox(torch.tensor([-2.0, 0.5, 2.0]), 1.0)
        tensor([0.0000, 0.5000, 1.0000])
    """

    lower: Parameter
    upper: Parameter

    def __post_init__(self) -> None:
        _check(self, lower="a number < inf", upper="a number > -inf")
        lower, upper = self.lower, self.upper
        if (wrong := _tensor(lower) > _tensor(upper)).any():
            low, high = (_tensor(side).expand_as(wrong)[wrong][0].item() for side in (lower, upper))
            raise InputError("box-bounds", lower=low, upper=high)
        # torch.clamp takes two numbers or two tensors, not one of each.
        if isinstance(upper, Tensor) and not isinstance(lower, Tensor):
            object.__setattr__(self, "lower", upper.new_tensor(lower))
        if isinstance(lower, Tensor) and not isinstance(upper, Tensor):
            object.__setattr__(self, "upper", lower.new_tensor(upper))

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return min{max{z, lower}, upper}."""
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
    """The indicator of u >= 0.

    Example:
        >>> NonNegative().prox(torch.tensor([-2.0, 2.0]), 1.0)
        tensor([0., 2.])
    """

    lower: Parameter = field(init=False, repr=False, default=0.0)
    upper: Parameter = field(init=False, repr=False, default=math.inf)


@dataclass(frozen=True, eq=False)
class LinfBall(Box):
    """The indicator of ||u - centre||_inf <= radius.

    Args:
        radius: Finite and >= 0.
        centre: A number, or a tensor that broadcasts to u.
    Example:
        >>> LinfBall(1.0).prox(torch.tensor([3.0, -4.0]), 1.0)
        tensor([ 1., -1.])
    """

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
    """The indicator of ||u - centre||_2 <= radius.

    Args:
        radius: Finite and >= 0.
        centre: A number, or a tensor that broadcasts to u.
    Example:
        >>> L2Ball(5.0).prox(torch.tensor([6.0, -8.0]), 1.0)
        tensor([ 3., -4.])
    """

    radius: float
    centre: Parameter = 0.0

    def __post_init__(self) -> None:
        _check(self, radius="finite and >= 0", centre="finite")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return centre + (z - centre) min{1, radius / ||z - centre||}."""
        y = _rows(_plus(z, self.centre, -1.0), batch)
        size = torch.linalg.vector_norm(y, math.inf, dim=-1, keepdim=True).clamp(min=1.0) if y.numel() else 1.0
        norm = _norm(y / size) * size  # squares of a large z would overflow
        y = y / (norm.clamp(min=max(self.radius, _TINY)) / self.radius)  # _TINY: radius 0 must not give 0 / 0
        return _plus(y.reshape(z.shape), self.centre)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        y, tolerance = self._centred(u, batch, slack)
        return _indicator(_norm(y) <= self.radius + tolerance, u)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        """Return v inside, v - (<v, y>)_+ y on the sphere with y = (u - centre) / ||u - centre||, 0 if radius = 0."""
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
    """The indicator of u >= 0 and sum_j u_j = total.

    Args:
        total: Finite and > 0.
    Example:
        >>> Simplex().prox(torch.tensor([1.0, 0.5, -3.0]), 1.0)
        tensor([0.7500, 0.2500, 0.0000])
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        _check(self, total="finite and > 0")

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return (z - t)_+ with t = max_k (z_(1) + ... + z_(k) - total) / k, z_(1) >= z_(2) >= ..."""
        y = _rows(z, batch)
        y = y - y.amax(-1, keepdim=True)  # entries that stay positive are now <= total, so a large z loses no digits
        sums = y.sort(dim=-1, descending=True).values.cumsum(-1)
        u = torch.relu(y - ((sums - self.total) / _ranks(y)).amax(-1, keepdim=True))
        return (u / (u.sum(-1, keepdim=True) / self.total)).reshape(z.shape)  # undoes the rounding of a long cumsum

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        rounding, u = _rows(slack + _rounding(u, u), batch), _rows(u, batch)
        gap, tolerance = u.sum(-1) - self.total, rounding.sum(-1) * _tolerance(rounding)
        # Rounding is monotone, so a translated prox cannot turn negative: the sign needs no tolerance.
        return _indicator((u >= 0).all(-1) & (gap.abs() <= tolerance), u).unsqueeze(-1)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        """Return v - t on the support, (v - t)_+ off it, with the t of the smallest norm."""
        support, v = _rows(u, batch) > 0, _rows(v, batch)
        v = v - v.amax(-1, keepdim=True)
        # The best t is the mean of v over the support and the k largest entries off it: the largest such mean over k.
        # Ranks below the size of the support give its sum, <= 0 after the shift, over too few: never the largest.
        size, ranks = support.sum(-1, keepdim=True), _ranks(v)
        off = v.masked_fill(support, math.inf).sort(dim=-1, descending=True).values.masked_fill(ranks <= size, 0.0)
        r = v - ((off.cumsum(-1) + (v * support).sum(-1, keepdim=True)) / ranks).amax(-1, keepdim=True)
        return torch.where(support, r, r.clamp(min=0.0)) + self._terms(u, batch, slack)


def _rows(x: Tensor, batch: int) -> Tensor:
    """Reshape to one flat row per block; a block may be a number."""
    return x.unsqueeze(-1).flatten(batch)


def _norm(rows: Tensor) -> Tensor:
    """Return ||row||, summed in a cascade: on a CPU, vector_norm adds d entries in order and loses up to d eps / 10."""
    return rows.square().sum(-1, keepdim=True).sqrt()


def _ranks(rows: Tensor) -> Tensor:
    return torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)


def _plus(x: Tensor, c: Parameter, alpha: float = 1.0) -> Tensor:
    """Return x + alpha c; no work for the default c = 0.0."""
    return torch.add(x, c, alpha=alpha) if isinstance(c, Tensor) or c else x


def _indicator(inside: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(inside.shape).masked_fill(~inside, math.inf)


def _rounding(u: Tensor, p: Tensor) -> Tensor:
    """Bound the error of p = u - shift, where u itself was rounded from shift + p."""
    return torch.finfo(u.dtype).eps * (u.abs() + p.abs())


def _tolerance(rows: Tensor) -> float:
    """Return the error allowed in a norm or sum of d entries, in units of the rounding of one entry.

    Our own sums are off by less than 10 for any d. sqrt(d) also accepts points from softmax or normalize.
    """
    return 4.0 * math.sqrt(rows.shape[-1])


def _tensor(value: Parameter) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _check(function: Convex, **rules: str) -> None:
    for name, rule in rules.items():
        x = _tensor(getattr(function, name))
        if (wrong := ~_RULES[rule](x)).any():
            kind, value = type(function).__name__, x[wrong][0].item()
            raise InputError("convex-parameter-range", function=kind, name=name, value=value, rule=rule)
