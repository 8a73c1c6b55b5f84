"""The entropy of a coin, whose conjugate is the logistic loss: with it, logistic regression is a saddle problem."""
# ruff: noqa: ARG002  (this function is separable: it does not use `batch`)

from dataclasses import dataclass
from math import ceil, inf, log10

import torch
from torch import Tensor

from sihg.core.prox import Convex, Parameter
from sihg.errors import InputError


@dataclass(frozen=True, eq=False)
class BinaryEntropy(Convex):
    r"""The function h(u) = weight sum_j {u_j log u_j + (1 - u_j) log(1 - u_j)} on 0 <= u <= 1, infinite outside.

    $$\sum_j \log(1 + e^{z_j}) = \max_{0 \le u \le 1} \langle z, u \rangle - h(u) \quad \text{for weight } 1$$

    Args:
        weight: Finite and > 0.
    Raises:
        InputError: If the weight is out of range.
    Example:
        >>> BinaryEntropy().prox(torch.tensor([0.5, 1.0]), 1.0)
        tensor([0.5000, 0.5989])
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise InputError(
                "convex-parameter-range",
                function="BinaryEntropy",
                name="weight",
                value=self.weight,
                rule="finite and > 0",
            )

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return the u with u + eta weight logit(u) = z, by Newton's method on t = logit(u).

        On both sides of t = 0, c t + sigmoid(t) bends towards zero, so that from (z - 1/2) / (c + 1/4) the steps
        approach the solution from one side. As many are made as the worst z needs.
        """
        c = max(eta * self.weight, torch.finfo(z.dtype).eps / 16)  # a smaller c changes u by a few units of rounding
        shift = z.new_full((), c)  # for a thousand numbers, adding a tensor takes half the time of adding a number
        t = (z - 0.5) / (c + 0.25)
        for _ in range(newton_steps(c, z.dtype)):
            u = torch.sigmoid(t)
            slope = u.addcmul(u, u, value=-1)
            t = torch.addcmul(z - u, slope, t).div_(slope.add_(shift))
        return torch.sigmoid(t)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        inside = (u >= -slack) & (u <= 1 + slack)
        u = u.clamp(0, 1)
        return torch.where(inside, self.weight * (torch.xlogy(u, u) + torch.xlogy(1 - u, 1 - u)), inf)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        # u stands for all numbers that round to it: near 0 and 1 their slopes differ much, and at 0 and 1 u has none.
        inside = (u >= -slack) & (u <= 1 + slack)
        width = torch.finfo(u.dtype).eps * u.abs() + torch.finfo(u.dtype).tiny + slack
        low, high = (self.weight * torch.logit((u + side * width).clamp(0, 1)) for side in (-1, 1))
        return torch.where(inside, v - torch.minimum(torch.maximum(v, low), high), inf)


def newton_steps(c: float, dtype: torch.dtype) -> int:
    """Return how many Newton steps solve c t + sigmoid(t) = z to rounding, for every z."""
    if c >= 0.65:  # after two steps t is within 6e-7, after three within 2e-14
        return 3 if dtype == torch.float64 else 2
    steps = 5 if dtype == torch.float64 else 3  # for c >= 0.1, and two more per decade below it
    return ceil(steps + 2 * max(0.0, -1 - log10(c)))
