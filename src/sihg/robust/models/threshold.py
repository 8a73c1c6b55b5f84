"""A pixel threshold as a layer, which lets hardly any change of a black or a white pixel pass."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import hardtanh

from sihg.errors import InputError

LEAK = 1e-3  # share of the slope that remains where the threshold is flat


class Threshold(nn.Module):
    """Map pixels to about 0 up to `low`, to about 1 from `high` on, and linearly between; the first layer of a model.

    With 0.4 and 0.6 a perturbation of at most 0.4 turns no 0 into a 1: an attacker can change grey pixels only. A flat
    threshold would hide the gradient from attacks instead of stopping them. So a thousandth of the slope remains
    outside. Each output depends on one pixel and rises with it, so both gradients have the same sign. Steps in a linf
    ball use nothing else. In an l2 ball, where sizes count, the flat parts do mask gradients.

    Args:
        low: Where the ramp begins.
        high: Where it ends, > low.
    Raises:
        InputError: Unless low < high, both finite ("threshold-range").
    Example:
        >>> [round(value, 3) for value in Threshold()(torch.tensor([0.1, 0.5, 0.9])).tolist()]
        [-0.002, 0.5, 1.002]
    """

    def __init__(self, low: float = 0.4, high: float = 0.6) -> None:
        super().__init__()
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError("threshold-range", low=low, high=high)
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        """Threshold every entry."""
        z = (x - self.low) / (self.high - self.low)
        # clamp's values, and on the way back one kernel, not four; at the ends the slope is that of the flat side
        return hardtanh(z, 0.0, 1.0).lerp(z, LEAK)

    def passed(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of each interval on which the ramp rises; for an interval outside, its end next to the ramp.

        At its two ends the threshold has about the values that it has at those of the interval.
        """
        return torch.minimum(low.clamp(min=self.low), high), torch.maximum(high.clamp(max=self.high), low)

    def extra_repr(self) -> str:
        """Show both ends where the layer is printed."""
        return f"{self.low}, {self.high}"


def threshold_of(model: nn.Module) -> Threshold:
    """Return the first threshold of a model; raise InputError if it has no threshold, or if two differ."""
    found = [module for module in model.modules() if isinstance(module, Threshold)]
    if not found:
        raise InputError("no-threshold", type=type(model).__name__)
    ends = sorted({(threshold.low, threshold.high) for threshold in found})
    if len(ends) > 1:
        raise InputError("thresholds-differ", ends=ends, type=type(model).__name__)
    return found[0]
