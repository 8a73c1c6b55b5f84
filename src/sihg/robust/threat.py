"""The threat model: a norm ball of radius eps, cut by the bounds of the data, and sets of perturbations in it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from sihg.errors import InputError, UnknownNameError
from sihg.parse import parse_number
from sihg.robust.waits import Late, late, refuse_if

Bounds = tuple[float | Tensor, float | Tensor] | None
ORDERS = {"linf": math.inf, "l2": 2.0}  # of each norm
NORMS = tuple(ORDERS)
MAX_SHRINKS = 3  # of `_shrink_into` on a device; bound - x is rounded by half a last bit, so one does


@dataclass(frozen=True, eq=False)
class Ball:
    """The threat model: norm(delta) <= eps, and x + delta within `bounds`.

    Args:
        eps: The radius, a number or text such as "8/255".
        norm: linf or l2.
        bounds: The lowest and the highest value of x + delta, numbers or tensors; None for the paper's literal ball.
    Raises:
        InputError: If there is no such ball.
    Example:
        >>> box = Ball("1/4").around(torch.tensor([[0.0, 0.5]]))
        >>> box.low.tolist(), box.high.tolist()
        ([[0.0, -0.25]], [[0.25, 0.25]])
    """

    eps: float
    norm: str = "linf"
    bounds: Bounds = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise UnknownNameError("norm", self.norm, list(NORMS))
        object.__setattr__(self, "eps", parse_number(self.eps, "eps"))
        if not 0 <= self.eps < math.inf:
            raise InputError("eps-range", eps=self.eps)
        if self.bounds is None:
            return
        try:
            low, high = torch.broadcast_tensors(*(torch.as_tensor(b) for b in self.bounds))
        except (TypeError, ValueError, RuntimeError):
            raise InputError("bounds", type=type(self.bounds).__name__) from None
        if not (bool((low <= high).all()) and bool((low < high).any())):  # a single feature may be fixed
            raise InputError("bounds-order", bounds=_as_text(self.bounds))
        if self.norm == "linf":
            self._check_radius(float((high - low).max()))

    def widths(self, x: Tensor) -> Tensor:
        """Return the range of each feature: 1 for uint8, which are pixels, else that of the bounds or of x itself."""
        if x.dtype == torch.uint8:
            return torch.ones(x.shape[1:])
        if self.bounds is None:
            return x.amax(0) - x.amin(0)
        widths = self._widths(x)
        return torch.where(widths.isfinite(), widths, x.amax(0) - x.amin(0)) if widths.isinf().any() else widths

    def check_scale(self, x: Tensor) -> None:
        """Raise InputError if eps is larger than any distance between samples, or x looks like pixels from 0 to 255.

        Without bounds, and with pixels in floats, a few samples do not show the range of the data.
        """
        if self.bounds is not None or x.dtype == torch.uint8:
            width = 1.0 if x.dtype == torch.uint8 else float(self._widths(x).max())
            self._check_radius(width * (1.0 if self.norm == "linf" else math.sqrt(math.prod(x.shape[1:]))))
        elif 0 < self.eps < 1 and _are_pixels(x):
            raise InputError("pixels-not-scaled", eps=self.eps, low=float(x.min()), high=float(x.max()))

    def _widths(self, x: Tensor) -> Tensor:
        """Return the upper minus the lower bound of each feature."""
        low, high = (_expand(torch.as_tensor(b, device=x.device), x[:1])[0] for b in self.bounds or ())
        return high - low

    def _check_radius(self, most: float) -> None:
        if self.eps > most:
            raise InputError("eps-scale", eps=self.eps, most=most)

    def around(self, x: Tensor) -> "Feasible":
        """Return the perturbations allowed for each row of `x`, which must lie within the bounds."""
        if self.bounds is None:
            low, high = torch.full_like(x, -math.inf), torch.full_like(x, math.inf)
        else:
            least, most = (_expand(_on_device(b, x), x) for b in self.bounds)
            refuse_if((x < least).any() | (x > most).any(), lambda: self._refuse_outside(x))
            low, high = least - x, most - x
            if not _are_unit(self.bounds):  # in [0, 1] no sum is rounded beyond the bounds
                low, high = _shrink_into(x, low, least, 1), _shrink_into(x, high, most, -1)
        if self.norm == "linf":
            return LinfSet(low.clamp_(min=-self.eps), high.clamp_(max=self.eps))
        return L2Set(low, high, ((None, self.eps),))

    def _refuse_outside(self, x: Tensor) -> NoReturn:
        bounds = _as_text(self.bounds or ())
        raise InputError("data-outside-bounds", low=float(x.min()), high=float(x.max()), bounds=bounds)

    def same_as(self, other: "Ball") -> bool:
        """Return whether both balls allow the same."""
        if (self.eps, self.norm) != (other.eps, other.norm) or (self.bounds is None) != (other.bounds is None):
            return False
        return all(_are_equal(a, b) for a, b in zip(self.bounds or (), other.bounds or (), strict=True))

    def lengths(self, delta: Tensor) -> Tensor:
        """Return the norm of each row."""
        lengths: Tensor = torch.linalg.vector_norm(delta.flatten(1), ord=ORDERS[self.norm], dim=1)
        return lengths

    def clip(self, point: Tensor) -> Tensor:
        """Clamp `point` to the bounds, against the last bit of rounding."""
        if self.bounds is None:
            return point
        low, high = (_on_device(b, point) for b in self.bounds)
        return torch.clamp(point, low, high)


@dataclass(frozen=True, eq=False)
class LinfSet:
    """The perturbations, per row of a batch, with low <= delta <= high in every entry."""

    low: Tensor
    high: Tensor

    def project_(self, delta: Tensor) -> Tensor:
        """Move `delta`, in place, to a nearby point of the set: clamp every entry."""
        return torch.clamp(delta, self.low, self.high, out=delta)

    def climb_(self, delta: Tensor, gradient: Tensor, step: float | Tensor) -> Tensor:
        """Step, in place, along the sign of the gradient, then project; changes `gradient` too."""
        return self.project_(_add_step(delta, gradient.sign_(), step))

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
    """

    low: Tensor
    high: Tensor
    balls: tuple[tuple[Tensor | None, float | Tensor], ...] = field(default=())  # centres (None: zero) and radii

    def project_(self, delta: Tensor) -> Tensor:
        """Scale into each ball, then clamp."""
        for centre, radius in self.balls:
            if centre is not None:
                delta.sub_(centre)
            delta.mul_((radius / _norms(delta).clamp_(min=torch.finfo(delta.dtype).tiny)).clamp_(max=1))
            if centre is not None:
                delta.add_(centre)
        return torch.clamp(delta, self.low, self.high, out=delta)

    def climb_(self, delta: Tensor, gradient: Tensor, step: float | Tensor) -> Tensor:
        """Step along the normalised gradient, unless it is zero."""
        tiny = torch.finfo(gradient.dtype).tiny
        gradient.div_(_norms(gradient, math.inf).clamp_(min=tiny))  # first: squares of small entries vanish
        gradient.div_(_norms(gradient).clamp_(min=tiny))
        return self.project_(_add_step(delta, gradient, step))

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
        balls = tuple((_take_rows(centre, index), _take_rows(radius, index)) for centre, radius in self.balls)
        return L2Set(self.low.index_select(0, index), self.high.index_select(0, index), balls)

    def saturated(self, delta: Tensor) -> float | Late[float]:
        """Return the share of rows on the sphere around zero, up to a hundredth of its radius."""
        rows = max(1, len(delta))
        return late(lambda on: on / rows, (_norms(delta) >= 0.99 * self.balls[-1][1]).sum())


Feasible = LinfSet | L2Set  # a convex set of perturbations per row of a batch


def scale_to_ball(normal: Tensor, u: Tensor, radius: float | Tensor) -> Tensor:
    """Scale normal rows, in place, to uniform points of the L2 ball: lengths radius u^(1/d), u uniform per row."""
    lengths = u.view(-1, *(1,) * (normal.dim() - 1)) ** (1 / math.prod(normal.shape[1:]))
    return normal.mul_(radius * lengths / _norms(normal))


def uniform_noise(
    norm: str, shape: Sequence[int], radius: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw uniform noise from the ball of `radius` around zero, per row, without bounds."""
    everywhere = torch.full(tuple(shape), math.inf, dtype=dtype)
    free: Feasible = LinfSet(-everywhere, everywhere) if norm == "linf" else L2Set(-everywhere, everywhere)
    return free.noisy(None, radius, generator)


def surface_noise(
    norm: str, shape: Sequence[int], radius: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw uniform noise and scale each row to the surface of the ball."""
    drawn = uniform_noise(norm, shape, 1.0, generator, dtype)
    return drawn.mul_(radius / _norms(drawn, math.inf if norm == "linf" else 2))


def extreme_noise(
    norm: str, shape: Sequence[int], radius: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw corners of the linf box, or uniform points of the L2 sphere."""
    if norm == "linf":
        return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype).mul_(2).sub_(1).mul_(radius)
    normal = torch.randn(tuple(shape), generator=generator, dtype=dtype)
    return normal.mul_(radius / _norms(normal))


def _take_rows(value: Any, index: Tensor) -> Any:
    """Index tensors by row; return scalars unchanged."""
    return value.index_select(0, index) if isinstance(value, Tensor) and value.dim() else value


def _add_step(delta: Tensor, direction: Tensor, step: float | Tensor) -> Tensor:
    return delta.addcmul_(direction, step) if isinstance(step, Tensor) else delta.add_(direction, alpha=step)


def _norms(rows: Tensor, order: float = 2) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.flatten(1), ord=order, dim=1)
    return norms.view(-1, *(1,) * (rows.dim() - 1))


def _on_device(bound: float | Tensor, x: Tensor) -> Tensor:
    """Return a bound in the type and place of x; a number needs no copy."""
    if isinstance(bound, int | float):
        return x.new_full((), bound)
    return torch.as_tensor(bound, dtype=x.dtype, device=x.device)


def _expand(bound: Tensor, x: Tensor) -> Tensor:
    try:
        return bound.expand_as(x)
    except RuntimeError:
        raise InputError("bounds-shape", shape=tuple(bound.shape), sample_shape=tuple(x.shape[1:])) from None


def _are_pixels(x: Tensor) -> bool:
    """Return whether x may be 8-bit images that were not divided by 255."""
    return x.dim() > 2 and 128 < float(x.max()) <= 255 and float(x.min()) >= 0 and torch.equal(x, x.round())


def _are_unit(bounds: Sequence[float | Tensor]) -> bool:
    return all(isinstance(b, int | float) for b in bounds) and tuple(bounds) == (0, 1)


def _shrink_into(x: Tensor, delta: Tensor, bound: Tensor, inwards: int) -> Tensor:
    """Shrink `delta` by a few last bits where x + delta is rounded to a number beyond the bound."""
    most = math.inf if x.device.type == "cpu" else MAX_SHRINKS  # a device would be waited for
    done, target = 0, delta.new_full((), inwards * math.inf)
    beyond = (x + delta - bound) * inwards < 0
    while done < most and (most < math.inf or bool(beyond.any())):
        delta = torch.where(beyond, torch.nextafter(delta, target), delta)
        done, beyond = done + 1, (x + delta - bound) * inwards < 0
    return delta


def _are_equal(a: float | Tensor, b: float | Tensor) -> bool:
    try:
        return bool((torch.as_tensor(a) == torch.as_tensor(b)).all())
    except RuntimeError:  # shapes that do not fit
        return False


def _as_text(bounds: Sequence[float | Tensor]) -> str:
    if any(torch.as_tensor(b).dim() for b in bounds):
        return "(one per feature)"
    return f"[{float(bounds[0]):g}, {float(bounds[1]):g}]"
