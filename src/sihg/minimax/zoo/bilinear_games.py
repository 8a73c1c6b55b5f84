"""Problems with phi_i(w, delta_i) = <A_i w, delta_i>."""

from math import sqrt

import torch
from torch import Tensor

from sihg.core.prox import LinfBall, Simplex, SquaredL2
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._images import difference, phantom
from sihg.minimax.zoo._tensors import tensor
from sihg.minimax.zoo.registry import Solution, register


@register
def matrix_game(payoff: Tensor | None = None) -> tuple[Problem, Solution | None]:
    """Matrix game on two simplices; rock-paper-scissors unless a payoff matrix is given."""
    rps = payoff is None
    A = tensor([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) if payoff is None else payoff.double()
    rows, columns = A.shape
    w0, delta0 = torch.zeros(columns, dtype=A.dtype), torch.zeros(1, rows, dtype=A.dtype)
    w0[0] = delta0[0, 0] = 1
    L12 = float(torch.linalg.matrix_norm(A, 2))
    problem = Problem.bilinear(A[None], w0, delta0, Simplex(), Simplex(), Constants(L11=0, L12=L12, L22=0, rho=0))
    third = torch.full((3,), 1 / 3, dtype=A.dtype)
    return problem, Solution(third, third[None]) if rps else None


@register
def tv_denoising(
    size: int = 0, weight: float = 0.3, noise: float = 0.1, seed: int = 0, image: Tensor | None = None
) -> tuple[Problem, Solution | None]:
    """Total-variation denoising (ROF) in two blocks, one per direction; by default two pixels with a known solution."""
    solution = None
    if image is None:
        image = phantom(size, noise=noise, seed=seed) if size else tensor([[0.0, 1.0]])
        if not size:
            shift = min(weight, 0.5)  # each pixel moves towards the other, at most to the middle
            slope = tensor([[shift, 0.0]])
            solution = Solution(image + tensor([[shift, -shift]]), torch.stack([slope, torch.zeros_like(slope)]))
    image = image.double()
    zeros = torch.zeros(2, *image.shape, dtype=image.dtype)
    problem = Problem.bilinear(
        [difference(1), difference(0)],
        torch.zeros_like(image),
        zeros,
        SquaredL2(1.0, image),
        LinfBall(weight),
        Constants(L11=0, L12=sqrt(8), L12_block=2.0, L22=0, rho=0),
    )
    return problem, solution
