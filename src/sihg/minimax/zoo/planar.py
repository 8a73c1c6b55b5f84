"""Games of two numbers w and delta."""

import torch
from torch import Tensor

from sihg.core.prox import Box
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._tensors import tensor
from sihg.minimax.zoo.registry import Solution, register


@register
def ratio_game(s: float = 0.5, epsilon: float = 0.495) -> tuple[Problem, Solution]:
    """Ratio game x'Ry / x'Sy on two simplices (as w and d in [0, 1]), where no MVI solution exists."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        top = w * (epsilon * (1 - delta) - delta) - (1 - w) * epsilon * delta
        return (top / (w * s + (1 - w))).squeeze(1)

    problem = Problem(phi, tensor([0.9]), tensor([[0.5]]), Box(0, 1), Box(0, 1), _ratio_constants(s, epsilon))
    return problem, Solution(tensor([0.0]), tensor([[0.0]]))


def _ratio_constants(s: float, epsilon: float) -> Constants:
    """phi = (w (epsilon - d) - epsilon d) / D with D = 1 - (1 - s) w >= s, linear in d; rho on a grid."""
    w, d = torch.meshgrid(*2 * (torch.linspace(0, 1, 401, dtype=torch.float64),), indexing="ij")
    D, slope = 1 - (1 - s) * w, 1 + epsilon * (1 - s)
    F_w, F_delta = (epsilon - slope * d) / D**2, (epsilon + w) / D
    rho = float((-2 * (F_w * w + F_delta * d) / (F_w**2 + F_delta**2)).max())
    L11 = 2 * (1 - s) * max(epsilon, slope - epsilon) / s**3
    return Constants(L11=L11, L12=slope / s**2, L22=0, rho=max(rho, 0.0))
