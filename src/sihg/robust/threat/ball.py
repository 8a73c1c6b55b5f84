"""The ball: its norm, its radius, and the bounds that cut it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.parse import ORDERS, parse_norm, parse_number
from sihg.robust.threat._l1 import L1Set
from sihg.robust.threat._rows import vector_norms
from sihg.robust.threat.sets import L2Set, LinfSet
from sihg.robust.waits import refuse_if

Bounds = tuple[float | Tensor, float | Tensor] | None
Feasible = LinfSet | L2Set | L1Set  # a convex set of perturbations per row of a batch
MAX_SHRINKS = 3  # of `_shrink_into` on a device; bound - x is rounded by half a last bit, so one does


@dataclass(frozen=True, eq=False)
class Ball:
    """The threat model: norm(delta) <= eps, and x + delta within `bounds`.

    Args:
        eps: The radius, a number or text such as "8/255".
        norm: linf, l2 or l1; also as AutoAttack writes it, "Linf".
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
        object.__setattr__(self, "norm", parse_norm(self.norm))
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
            self._check_radius(width * self.longest(math.prod(x.shape[1:])))
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
        low, high = self._limits(x)
        if self.norm == "linf":
            return LinfSet(low.clamp_(min=-self.eps), high.clamp_(max=self.eps))
        return (L2Set if self.norm == "l2" else L1Set)(low, high, ((None, self.eps),))

    def box_around(self, x: Tensor) -> "Feasible":
        """Return the perturbations of any size that the bounds allow, with the steps of this norm."""
        low, high = self._limits(x)
        return LinfSet(low, high) if self.norm == "linf" else (L2Set if self.norm == "l2" else L1Set)(low, high)

    def _limits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far each entry of `x`, which must lie within the bounds, can fall and rise."""
        if self.bounds is None:
            return torch.full_like(x, -math.inf), torch.full_like(x, math.inf)
        least, most = (_expand(_on_device(b, x), x) for b in self.bounds)
        refuse_if((x < least).any() | (x > most).any(), lambda: self._refuse_outside(x))
        low, high = least - x, most - x
        if not _are_unit(self.bounds):  # in [0, 1] no sum is rounded beyond the bounds
            low, high = _shrink_into(x, low, least, 1), _shrink_into(x, high, most, -1)
        return low, high

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
        return vector_norms(delta.flatten(1), ORDERS[self.norm])

    def longest(self, features: int) -> float:
        """Return the norm of a vector of that many ones."""
        return {"linf": 1.0, "l2": math.sqrt(features), "l1": float(features)}[self.norm]

    def clip(self, point: Tensor) -> Tensor:
        """Clamp `point` to the bounds, against the last bit of rounding."""
        if self.bounds is None:
            return point
        low, high = (_on_device(b, point) for b in self.bounds)
        return torch.clamp(point, low, high)


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
