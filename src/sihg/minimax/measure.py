"""How far a point is from stationary, what the theorems promise, and what the Lipschitz constants seem to be."""

from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.minimax import step_sizes as steps
from sihg.minimax._layout import Blocks, Weights
from sihg.minimax.callbacks import Progress
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem


def saddle_norm_squared(problem: Problem, w: Weights, delta: Blocks) -> float:
    """||F(w, delta)||^2, the squared distance of 0 to the saddle subdifferential; infinite outside the domain."""
    return flat_saddle_norm_squared(problem, problem.w_layout.pack(w), problem.delta_layout.pack(delta))


def flat_saddle_norm_squared(problem: Problem, w: Tensor, delta: Tensor) -> float:
    """The same for flat vectors."""
    g_w, g_delta = problem.gradients(w, delta)
    return float(problem.distance_f(w, -g_w) ** 2 + problem.distance_g(delta, g_delta) ** 2)


def distance(problem: Problem, w: Weights, delta: Blocks, w_star: Weights, delta_star: Blocks) -> float:
    """||(w, delta) - (w*, delta*)||."""
    apart_w = problem.w_layout.pack(w) - problem.w_layout.pack(w_star)
    apart_delta = problem.delta_layout.pack(delta) - problem.delta_layout.pack(delta_star)
    return float(torch.cat((apart_w, apart_delta)).norm())


def explicit_bound(
    problem: Problem, w_star: Weights, delta_star: Blocks, sigma: float, tau: float, *, one_block: bool = False
) -> float:
    """The bound of Theorem 1 on sum_k E||F(w^k, delta-hat^k)||^2 from the problem's start, or of Corollary 3.

    With `one_block` all of delta is one block, as DSI-HG takes it. Infinite where the steps are outside the general
    condition, or where L11, L12 or rho is not known. It holds for theta = 1.
    """
    c, n = problem.constants, 1 if one_block else problem.n
    monotone = bool(c.mu) or problem.bilinear_in_both  # then rho = 0 will do
    if c.L11 is None or c.L12 is None or (c.rho is None and not monotone):
        return inf
    factor = steps.bound_factor(sigma, tau, L11=c.L11, L12=steps.coupling_constant(c, n), n=n, rho=c.rho or 0.0)
    w_part = float((problem.w_layout.pack(w_star) - problem.w0).square().sum()) / (2 * sigma)
    delta_part = float((problem.delta_layout.pack(delta_star) - problem.delta0).square().sum()) / (2 * tau)
    return factor * (w_part + n * delta_part)


def estimate_constants(problem: Problem, *, iterations: int = 30, seed: int = 0) -> Constants:
    """L11, L12, L12_block and L22 near the start, by power iteration on differences of gradients.

    Each is a ratio ||change of gradient|| / ||change of variable|| that was seen, so a lower bound, and a local one
    unless phi is quadratic. Costs a few gradients an iteration.
    """
    w0, delta0 = problem.w0, problem.delta0
    g_w, g_delta = problem.gradients(w0, delta0)
    draw = generator(seed, "lipschitz")
    h = _small(problem)

    def random_like(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=draw, dtype=x.dtype).to(x.device)

    v, L11, L12 = random_like(w0), 0.0, 0.0
    for _ in range(iterations):  # |H_ww|
        v = (problem.gradient_w(w0 + h * _unit(v), delta0, problem.all) - g_w) / h
        L11 = max(L11, float(v.norm()))
    v = random_like(w0)
    for _ in range(iterations):  # |H_dw|, one way and back
        u = (problem.gradient_delta(w0 + h * _unit(v), delta0, problem.all) - g_delta) / h
        v = (problem.gradient_w(w0, delta0 + h * _unit(u), problem.all) - g_w) / h
        L12 = max(L12, float(u.norm()), float(v.norm()))
    L22 = estimate_curvature(problem, iterations=iterations, seed=seed)
    strongest = by_block(problem, u).topk(min(4, problem.n)).indices.tolist()
    L12_block = max(_block_coupling(problem, i, h, random_like(w0), g_delta, iterations) for i in strongest)
    noise = 1e-6 * max(L11, L12, L22)  # differences of rounding, not of gradients
    L11, L22 = (0.0 if value < noise else value for value in (L11, L22))
    known = problem.constants
    estimated = Constants(
        L11=L11,
        L12=max(L12, L12_block),
        L12_block=L12_block,
        L22=L22,
        source="estimates at the start (local lower bounds)",
    )
    return replace(estimated, rho=known.rho, mu=known.mu)


def estimate_curvature(problem: Problem, *, iterations: int = 30, seed: int = 0) -> float:
    """L22 near the start, likewise; grad_delta phi is block diagonal in delta, so every block is tried at once."""
    w0, delta0 = problem.w0, problem.delta0
    g_delta, h = problem.gradient_delta(w0, delta0, problem.all), _small(problem)
    block_of = _block_of_each_entry(problem)
    d = torch.randn(delta0.shape, generator=generator(seed, "curvature"), dtype=w0.dtype).to(w0.device)
    largest = 0.0
    for _ in range(iterations):
        unit = d / by_block(problem, d).clamp_min(torch.finfo(d.dtype).tiny)[block_of]
        d = (problem.gradient_delta(w0, delta0 + h * unit, problem.all) - g_delta) / h
        largest = max(largest, float(by_block(problem, d).max()))
    return largest


def _block_coupling(problem: Problem, i: int, h: float, v: Tensor, g_delta: Tensor, iterations: int) -> float:
    """max ||grad_w phi_i(w, d + hu) - grad_w phi_i(w, d)|| / h over u, by power iteration."""
    index, d = problem.only(i), problem.delta_layout.block(problem.delta0, i)
    g_i, g_w_i = problem.delta_layout.block(g_delta, i), problem.gradient_w(problem.w0, d, index)
    largest = 0.0
    for _ in range(max(5, iterations // 3)):
        u = (problem.gradient_delta(problem.w0 + h * _unit(v), d, index) - g_i) / h
        v = (problem.gradient_w(problem.w0, d + h * _unit(u), index) - g_w_i) / h
        largest = max(largest, float(v.norm()))
    return largest


class ObservedLipschitz:
    """A callback for `solve`: the largest Lipschitz ratios seen between consecutive iterates.

    Lower bounds of L11, L12 and L22 where the iterates have been; not counted as the solver's gradients.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.L11 = self.L12 = self.L22 = 0.0
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, progress: Progress) -> None:
        """Compare this iterate with the last one."""
        w, delta = progress.state.w, progress.state.delta.clone()
        if self._last is not None:
            self._compare(*self._last, w, delta)
        self._last = w, delta

    def _compare(self, w: Tensor, delta: Tensor, w2: Tensor, delta2: Tensor) -> None:
        moved_w, moved_delta = float((w2 - w).norm()), float((delta2 - delta).norm())
        a_w, a_delta = self.problem.gradients(w, delta)
        if moved_w > 0:
            b_w, b_delta = self.problem.gradients(w2, delta)
            self.L11 = max(self.L11, float((b_w - a_w).norm()) / moved_w)
            self.L12 = max(self.L12, float((b_delta - a_delta).norm()) / moved_w)
        if moved_delta > 0:
            b_w, b_delta = self.problem.gradients(w, delta2)
            self.L22 = max(self.L22, float((b_delta - a_delta).norm()) / moved_delta)
            self.L12 = max(self.L12, float((b_w - a_w).norm()) / moved_delta)


def _unit(x: Tensor) -> Tensor:
    return x / max(float(torch.linalg.vector_norm(x)), torch.finfo(x.dtype).tiny)


def by_block(problem: Problem, delta: Tensor) -> Tensor:
    """The norm of each block of a flat delta."""
    squares = torch.zeros(problem.n, dtype=delta.dtype, device=delta.device)
    return squares.index_add_(0, _block_of_each_entry(problem), delta * delta).sqrt()


def _block_of_each_entry(problem: Problem) -> Tensor:
    sizes = torch.tensor([shape.numel() for shape in problem.delta_layout.shapes])
    return torch.repeat_interleave(torch.arange(problem.n), sizes).to(problem.w0.device)


def _small(problem: Problem) -> float:
    """A length over which to difference gradients: the square root of rounding, in the size of the start."""
    size = max(1.0, float(problem.w0.norm()), float(problem.delta0.norm()))
    return float(torch.finfo(problem.w0.dtype).eps ** 0.5 * size)
