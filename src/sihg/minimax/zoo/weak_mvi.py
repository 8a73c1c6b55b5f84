"""Problems with a weak MVI whose rho is known in closed form."""

from math import sqrt

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.minimax._coupling import Gradients
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._tensors import check_option, orthogonal, tensor
from sihg.minimax.zoo.registry import Solution, register


@register
def weak_mvi(a: float = 1.0, b: float = -0.02) -> tuple[Problem, Solution]:
    """a w d + (b/2)(w^2 - d^2) with b < 0: neither convex nor concave, weak MVI with rho = 2|b|/(a^2 + b^2)."""
    return _quadratic_game(a, b, (1.0, 0.5))


@register
def lower_bound(c: float = 0.5, L: float = 2.0) -> tuple[Problem, Solution]:
    """The game weak-mvi with |F(z)| = L |z| and rho = 2 c / L; EG+ with the step 1/L needs ratio < 1 - 2 c.

    a = L sqrt(1 - c^2) and b = -L c. EG+ with the step 1/L maps z to z - ratio (J/L)(1 - J/L) z, where J has the
    eigenvalues b +- i a. It contracts if and only if ratio < 1 - 2 c (Pethick et al. 2022, Theorem 3.4), so never at
    the default c = 1/2. The default, a = sqrt(3) and b = -1 from (1/2, 0), is in Boehm's public experiments with OGDA+.
    """
    check_option("c", c, above=0, below=1)
    check_option("L", L, above=0)
    return _quadratic_game(L * sqrt(1 - c**2), -L * c, (0.5, 0.0))


def _quadratic_game(a: float, b: float, start: tuple[float, float]) -> tuple[Problem, Solution]:
    """Build a w d + (b/2)(w^2 - d^2): F(z) = J z with <J z, z> = b |z|^2 and |J z|^2 = (a^2 + b^2) |z|^2."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (a * w * delta + b / 2 * (w**2 - delta**2)).squeeze(1)

    def closed_form(w: Tensor, centre: Tensor, tau: float, index: Tensor) -> Tensor:  # noqa: ARG001
        return (centre + tau * a * w) / (1 + tau * b)

    by_hand = Gradients(
        lambda w, delta, index: a * delta.view(1) + b * w,  # noqa: ARG005
        lambda w, delta, index: a * w - b * delta,  # noqa: ARG005
    )
    constants = Constants(L11=abs(b), L12=abs(a), L22=abs(b), rho=2 * max(-b, 0.0) / (a**2 + b**2))
    starts = tensor([start[0]]), tensor([[start[1]]])
    problem = Problem(phi, *starts, constants=constants, closed_form=closed_form, by_hand=by_hand)
    return problem, Solution(tensor([0.0]), tensor([[0.0]]))


@register
def weak_mvi_blocks(
    n: int = 4, dimension: int = 2, a: float = 1.0, b: float = -0.005, seed: int = 0
) -> tuple[Problem, Solution]:
    """The n-block version of weak-mvi, with [A_1 ... A_n] square orthogonal."""
    return _weak_family(n, dimension, a, 0.0, b, 0.0, seed)


@register
def weak_mvi_nonlinear(
    n: int = 4, dimension: int = 2, e: float | None = None, b: float | None = None, radius: float = 2.5, seed: int = 0
) -> tuple[Problem, Solution]:
    """sum_i h(<w, A_i d_i>) + (b/2)(|w|^2 - |d|^2), h(t) = t + e sin t: the nonconvex-nonconcave headline test."""
    check_option("n", n, whole=True, least=1)
    e = (0.05 if n <= 4 else 0.02) if e is None else e
    b = (-0.008 if n <= 4 else -0.005) if b is None else b
    return _weak_family(n, dimension, 1.0, e, b, radius, seed)


def _weak_family(
    n: int, dimension: int, a: float, e: float, b: float, radius: float, seed: int
) -> tuple[Problem, Solution]:
    """Build a problem whose constants hold for |w|, |delta| <= radius (everywhere if e = 0)."""
    check_option("n", n, whole=True, least=1)
    check_option("dimension", dimension, whole=True, least=1)
    draw, m = generator(seed, "weak-mvi"), n * dimension
    A = a * orthogonal(m, draw).view(n, dimension, m)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        t = ((A[index] @ w) * delta).sum(1)
        return t + e * torch.sin(t) + b / 2 * (w @ w / n - (delta * delta).sum(1))

    def slope(t: Tensor) -> Tensor:
        return (1 + e * torch.cos(t))[:, None]

    def grad_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        rows = A[index]
        scaled = slope(((rows @ w) * delta).sum(1)) * delta
        return scaled.reshape(-1) @ rows.view(-1, m) + b * len(index) / n * w

    def grad_delta(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        Aw = A[index] @ w
        return slope((Aw * delta).sum(1)) * Aw - b * delta

    curvature = e * radius**2 + abs(b)
    least = (1 - e) * a
    constants = Constants(
        L11=curvature, L12=a * (1 + e) + e * radius**2, L22=curvature, rho=2 * abs(b) / (least**2 + b**2)
    )
    w0 = torch.randn(m, generator=draw, dtype=A.dtype)
    zeros = torch.zeros(n, dimension, dtype=A.dtype)
    problem = Problem(phi, w0 / w0.norm(), zeros, constants=constants, by_hand=Gradients(grad_w, grad_delta))
    return problem, Solution(torch.zeros_like(w0), zeros)
