"""A pixel threshold as a layer: what an attacker may do to a black or a white pixel hardly passes."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import hardtanh

from sihg.errors import InputError

LEAK = 1e-3  # of the slope, left where the threshold is flat


class Threshold(nn.Module):
    """About 0 up to `low`, about 1 from `high` on, straight between; the first layer: nn.Sequential(Threshold(), conv).

    With 0.4 and 0.6 a perturbation of up to 0.4 turns no 0 into a 1: only grey pixels are the attacker's. A flat
    threshold would blind attacks by gradients, not stop them; so a thousandth of the slope remains outside. Each output
    depends on one pixel and rises with it: the gradient in a pixel has the sign of the gradient in its output, which is
    all that steps in a linf ball use. In an l2 ball, where sizes count, the flat parts do mask.
    """

    def __init__(self, low: float = 0.4, high: float = 0.6) -> None:
        super().__init__()
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"a threshold rises from low to high, got {low} and {high}: give low < high, both finite")
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        """Threshold every entry."""
        z = (x - self.low) / (self.high - self.low)
        # clamp's values, and on the way back one kernel, not four; at the ends the slope is that of the flat side
        return hardtanh(z, 0.0, 1.0).lerp(z, LEAK)

    def passed(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The part of an interval, entry by entry, on which the ramp rises: at its ends the threshold is about what it
        is at theirs. Of an interval beside the ramp that is the end next to it.
        """
        return torch.minimum(low.clamp(min=self.low), high), torch.maximum(high.clamp(max=self.high), low)

    def extra_repr(self) -> str:
        """The two ends, where the layer is printed."""
        return f"{self.low}, {self.high}"


def threshold_of(model: nn.Module) -> Threshold:
    """The threshold of a model; of several, which must be alike, the first."""
    found = [module for module in model.modules() if isinstance(module, Threshold)]
    if not found:
        raise InputError(
            f"this {type(model).__name__} has no Threshold: take threshold-cnn or threshold-pair, or put one first in "
            "your own, nn.Sequential(Threshold(), ...)"
        )
    ends = sorted({(one.low, one.high) for one in found})
    if len(ends) > 1:
        raise InputError(f"this {type(model).__name__} has thresholds with the ends {ends}: give all the same")
    return found[0]
