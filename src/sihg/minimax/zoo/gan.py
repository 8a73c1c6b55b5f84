"""Small GANs with known solutions: Dirac-GAN, and WGANs with linear or quadratic critics."""

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.core.prox import L2Ball, LinfBall
from sihg.minimax._coupling import Gradients
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._tensors import check_option, orthogonal, tensor
from sihg.minimax.zoo.registry import Solution, register


@register
def dirac_gan() -> tuple[Problem, Solution]:
    """Dirac-GAN: -log(1 + exp(-w d)), a generator and a discriminator of one number each."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return torch.nn.functional.logsigmoid(w * delta).squeeze(1)

    return Problem(phi, tensor([1.0]), tensor([[1.0]])), Solution(tensor([0.0]), tensor([[0.0]]))


@register
def wgan_mean(
    n: int = 4, dimension: int = 2, least: float = 0.5, clip: float = 1.0, seed: int = 0
) -> tuple[Problem, Solution]:
    """Linear WGAN that learns a mean (Daskalakis et al. 2018): n clipped critics, each sees some features of the data.

    The generator gives x = v + w + z with E z = 0, where v is the mean of the data, and critic i the value
    <d_i, B_i x> with |d_i| <= clip. So w is the generator's error and phi_i(w, d_i) = -<d_i, B_i w>, bilinear. The
    matrix (B_1 ... B_n) is square with singular values from `least` to 1, so 0 is the only stationary point. Descent
    ascent from the start, d = 0, ends in a cycle.
    """
    check_option("n", n, whole=True, least=1)
    check_option("dimension", dimension, whole=True, least=1)
    check_option("least", least, above=0, below=1)
    check_option("clip", clip, above=0)
    draw, size = generator(seed, "wgan-mean"), n * dimension
    scale = torch.linspace(1, least, size, dtype=torch.float64)
    B = (orthogonal(size, draw) @ torch.diag(scale) @ orthogonal(size, draw)).view(n, dimension, size)
    w0 = torch.randn(size, generator=draw, dtype=B.dtype)
    zeros = torch.zeros(n, dimension, dtype=B.dtype)
    L12_block = float(torch.linalg.matrix_norm(B, 2).max())
    constants = Constants(L11=0, L12=1, L12_block=L12_block, L22=0, rho=0)
    problem = Problem.bilinear(-B, w0, zeros, g=LinfBall(clip), constants=constants)
    return problem, Solution(torch.zeros_like(w0), zeros)


@register
def wgan_covariance(n: int = 4, clip: float = 0.5, seed: int = 0) -> tuple[Problem, Solution]:
    """WGAN that learns a covariance (Daskalakis et al. 2018): linear generator, quadratic critic, n rows as n blocks.

    The generator gives x = V z with E zz' = 1, the critic the value x'D x with entries |D_ij| <= clip, so phi_i(V, D_i)
    = <D_i, S_i - (V V')_i> for row i, where S is the covariance of the data. Nonconvex in V. Stationary are D = 0 (up
    to an antisymmetric part) with V V' = S; the solution given is the symmetric root V. Descent ascent from the start,
    near the solution, ends in a cycle.

    V stays in a ball |V| <= R of twice the root's norm, inside which L11 = 2 max |D| <= 2 n clip, L12 = 2 R, L22 = 0.
    """
    check_option("n", n, whole=True, least=1)
    check_option("clip", clip, above=0)
    draw = generator(seed, "wgan-covariance")
    Q = orthogonal(n, draw)
    root = Q @ torch.diag(torch.linspace(0.5, 1.5, n, dtype=Q.dtype)) @ Q.T
    S, radius = root @ root, 2 * float(root.norm())

    def phi(V: Tensor, D: Tensor, index: Tensor) -> Tensor:
        return (D * (S[index] - V[index] @ V.T)).sum(1)

    def grad_w(V: Tensor, D: Tensor, index: Tensor) -> Tensor:
        out = -(D.T @ V[index])
        return out.index_add_(0, index, -(D @ V))

    def grad_delta(V: Tensor, D: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return S[index] - V[index] @ V.T

    start = root + 0.3 * torch.randn(n, n, generator=draw, dtype=Q.dtype)
    constants = Constants(L11=2 * n * clip, L12=2 * radius, L22=0)
    problem = Problem(
        phi,
        start * min(1.0, radius / float(start.norm())),
        torch.zeros_like(S),
        L2Ball(radius),
        LinfBall(clip),
        constants,
        by_hand=Gradients(grad_w, grad_delta),
    )
    return problem, Solution(root, torch.zeros_like(S))
