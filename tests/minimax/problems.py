"""Problems for tests."""

import torch
from torch import Tensor

from sihg.core.prox import Box, Convex, ElasticNet
from tests.minimax.twins import Plain


def nonlinear(n: int, *, f: Convex | None = None, g: Convex | None = None, seed: int = 0) -> Plain:
    """A small smooth nonconvex-nonconcave coupling, with f and g at work."""
    draw = torch.Generator().manual_seed(seed)
    m, d = 5, 3
    B = torch.randn(n, d, m, generator=draw, dtype=torch.float64) / m**0.5
    c = torch.randn(n, d, generator=draw, dtype=torch.float64)
    w0 = torch.randn(m, generator=draw, dtype=torch.float64)
    delta0 = 0.3 * torch.randn(n, d, generator=draw, dtype=torch.float64)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        Bw = B[index] @ w
        return (torch.tanh(Bw + c[index]) * torch.sin(delta) + 0.3 * torch.cos(Bw * delta)).sum(1)

    return Plain(phi, w0, delta0, f or ElasticNet(0.02, 0.1), g or Box(-0.5, 0.4))
