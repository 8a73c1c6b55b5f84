"""Newton's method for the equations that give the zoo's reference solutions."""

from collections.abc import Callable

import torch
from torch import Tensor

from sihg.errors import InputError

MAX_STEPS = 100
SMALLEST_STEP = 2.0**-12


def solve_equation(residual: Callable[[Tensor], Tensor], x: Tensor, problem: str) -> Tensor:
    """Return the x with residual(x) = 0 to rounding, by Newton steps halved until |residual| falls.

    The residual may be piecewise smooth, such as a gradient with a projection inside. The steps go on until |residual|
    no longer falls, so the result is as good as float64 allows.

    Args:
        residual: A function of a vector, differentiable by autograd.
        x: Where to begin.
        problem: The name of the problem, for the error.
    Raises:
        InputError: If the steps end far from a solution.
    """
    r = residual(x)
    first = float(r.norm())
    for _ in range(MAX_STEPS):
        step = torch.linalg.solve(torch.autograd.functional.jacobian(residual, x), r)
        share = 1.0
        while not float((smaller := residual(x - share * step)).norm()) < (1 - share / 4) * float(r.norm()):
            share /= 2
            if share < SMALLEST_STEP:
                return _checked(x, r, first, problem)
        x, r = x - share * step, smaller
    return _checked(x, r, first, problem)


def _checked(x: Tensor, r: Tensor, first: float, problem: str) -> Tensor:
    if not float(r.norm()) <= 1e-12 * (1 + first):
        raise InputError("reference-solution-not-found", problem=problem, residual=float(r.norm()))
    return x
