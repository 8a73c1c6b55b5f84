"""Plain twins: the paper's listings word for word, with nothing saved and nothing clever."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sihg.core.prox import Convex
from sihg.minimax import Problem

Coupling = Callable[[Tensor, Tensor, Tensor], Tensor]


class Plain:
    """A problem with stacked blocks as the paper writes it: full gradients only, blocks by zeroing the rest."""

    def __init__(self, coupling: Coupling, w0: Tensor, delta0: Tensor, f: Convex, g: Convex) -> None:
        self.coupling, self.w0, self.delta0, self.f, self.g = coupling, w0, delta0, f, g
        self.n = len(delta0)

    def problem(self, **more: object) -> Problem:
        return Problem(self.coupling, self.w0, self.delta0, self.f, self.g, **more)  # type: ignore[arg-type]

    def phi(self, w: Tensor, delta: Tensor) -> Tensor:
        return self.coupling(w, delta, torch.arange(self.n)).sum()

    def grad_w(self, w: Tensor, delta: Tensor) -> Tensor:
        w = w.clone().requires_grad_()
        return torch.autograd.grad(self.phi(w, delta), w)[0]

    def grad_delta(self, w: Tensor, delta: Tensor) -> Tensor:
        delta = delta.clone().requires_grad_()
        return torch.autograd.grad(self.phi(w, delta), delta)[0]

    def implicit(self, w: Tensor, centre: Tensor, tau: float) -> Tensor:
        """Every block's implicit step, by a fixed large number of fixed-point iterations."""
        delta = centre
        for _ in range(80):
            delta = self.g.prox(centre + tau * self.grad_delta(w, delta), tau, batch=1)
        return delta


def algorithm_1(p: Plain, sigma: float, tau: float, theta: float, blocks: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """SSI-HG as listed, every line with full gradients."""
    n = p.n
    w_before, delta_before = w, delta = p.w0, p.delta0
    path = []
    for i in blocks:
        q = p.grad_w(w_before, delta_before) - (n - 1) * (p.grad_w(w, delta) - p.grad_w(w, delta_before))
        A = p.grad_w(w, delta)
        w_new = p.f.prox(w - sigma * (A + theta * (A - q)), sigma)
        delta_new = delta.clone()
        delta_new[i] = p.implicit(w_new, delta, tau)[i]
        w_before, delta_before, w, delta = w, delta, w_new, delta_new
        path.append((w, delta))
    return path


def algorithm_2(p: Plain, sigma: float, tau: float, theta: float, iterations: int) -> list[tuple[Tensor, Tensor]]:
    """DSI-HG as listed."""
    w_before, delta_before = w, delta = p.w0, p.delta0
    path = []
    for _ in range(iterations):
        A = p.grad_w(w, delta)
        w_new = p.f.prox(w - sigma * (A + theta * (A - p.grad_w(w_before, delta_before))), sigma)
        delta_new = p.implicit(w_new, delta, tau)
        w_before, delta_before, w, delta = w, delta, w_new, delta_new
        path.append((w, delta))
    return path
