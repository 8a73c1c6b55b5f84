"""Problems with a strong MVI: F is strongly monotone."""

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.core.prox import SquaredL2
from sihg.minimax._coupling import Gradients
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._tensors import check_multiple, check_option, multiply_rows, orthogonal
from sihg.minimax.zoo.registry import Solution, register


@register
def ridge(
    samples: int = 200, features: int = 10, n: int = 4, weight: float = 0.1, seed: int = 0
) -> tuple[Problem, Solution]:
    """Ridge regression as a saddle problem, samples split into n blocks; strongly monotone."""
    check_multiple(samples, n)
    draw = generator(seed, "ridge")
    A = torch.randn(samples, features, generator=draw, dtype=torch.float64)
    b = A @ torch.randn(features, generator=draw, dtype=torch.float64)
    b = b + 0.5 * torch.randn(samples, generator=draw, dtype=torch.float64)
    gram = A.T @ A / samples
    w = torch.linalg.solve(gram + weight * torch.eye(features, dtype=A.dtype), A.T @ b / samples)
    blocks, targets = A.view(n, -1, features), b.view(n, -1)
    block_norms = torch.linalg.eigvalsh(blocks.transpose(1, 2) @ blocks)[:, -1].sqrt()
    constants = Constants(
        L11=0,
        L12=float(torch.linalg.eigvalsh(gram)[-1] * samples) ** 0.5 / samples,
        L12_block=float(block_norms.max()) / samples,
        L22=0,
        mu=2 * min(weight, 1 / samples),
    )
    # (1/N) {d^2/2 + b d}, the conjugate of (1/N) (a'w - b)^2 / 2, up to a constant
    g = [SquaredL2(1 / samples, -target) for target in targets]
    problem = Problem.bilinear(blocks / samples, f=SquaredL2(weight), g=g, constants=constants)
    return problem, Solution(w, blocks @ w - targets)


@register
def quadratic(
    n: int = 4, dimension: int = 3, least: float = 0.2, largest: float = 1.0, coupling: float = 1.0, seed: int = 0
) -> tuple[Problem, Solution]:
    """Strongly convex-strongly concave quadratic with n blocks; strongly monotone."""
    check_option("n", n, whole=True, least=1)
    check_option("dimension", dimension, whole=True, least=1)
    draw, m = generator(seed, "quadratic"), n * dimension

    def curvature(size: int) -> Tensor:
        Q = orthogonal(size, draw)
        return Q @ torch.diag(torch.linspace(least, largest, size, dtype=Q.dtype)) @ Q.T

    P, Q = curvature(m), torch.stack([curvature(dimension) for _ in range(n)])
    A = coupling * orthogonal(m, draw).view(n, dimension, m)
    identity = torch.eye(dimension, dtype=P.dtype)
    w_star = torch.randn(m, generator=draw, dtype=P.dtype)
    delta_star = torch.randn(n, dimension, generator=draw, dtype=P.dtype)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        u, d = w - w_star, delta - delta_star[index]
        return u @ (P @ u) / (2 * n) + ((A[index] @ u - multiply_rows(Q[index], d) / 2) * d).sum(1)

    def grad_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        d = (delta - delta_star[index]).reshape(-1)
        return len(index) / n * (P @ (w - w_star)) + d @ A[index].view(-1, m)

    def grad_delta(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        return A[index] @ (w - w_star) - multiply_rows(Q[index], delta - delta_star[index])

    def closed_form(w: Tensor, centre: Tensor, tau: float, index: Tensor) -> Tensor:
        right = centre - delta_star[index] + tau * (A[index] @ (w - w_star))
        step: Tensor = torch.linalg.solve(identity + tau * Q[index], right)
        return delta_star[index] + step

    constants = Constants(L11=largest, L12=coupling, L22=largest, mu=2 * least)
    zeros = torch.zeros(m, dtype=P.dtype), torch.zeros(n, dimension, dtype=P.dtype)
    by_hand = Gradients(grad_w, grad_delta)
    problem = Problem(phi, *zeros, constants=constants, closed_form=closed_form, by_hand=by_hand)
    return problem, Solution(w_star, delta_star)
