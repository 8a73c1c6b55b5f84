"""The norms ||A_i|| of a bilinear problem."""

from torch import Tensor

from sihg.errors import InputError
from sihg.minimax.bilinear import BilinearCoupling
from sihg.minimax.problem import Problem

LEAST = 0.01  # times the mean; a block of norm 0 must be drawn too, for the sake of its g_i


def block_norms(problem: Problem) -> Tensor:
    """Return estimates of ||A_i||, at least a hundredth of their mean; computed once per problem."""
    assert isinstance(problem.coupling, BilinearCoupling)  # `check_suits` has seen to it
    norms = problem.coupling.norms
    mean = float(norms.mean())
    if not mean > 0:
        raise InputError("not-coupled", value=mean)
    return norms.clamp_min(LEAST * mean)
