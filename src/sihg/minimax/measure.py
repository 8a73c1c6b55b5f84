"""Measure the distance to stationarity, the bound of Theorem 1, and estimates of the Lipschitz constants.

Example:
    >>> from sihg.minimax import measure, zoo
    >>> benchmark = zoo.get("quadratic")
    >>> measure.saddle_norm_squared(benchmark.problem, *benchmark.solution) < 1e-20
    True
"""

from math import inf

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.minimax import step_sizes as steps
from sihg.minimax._layout import Blocks, Weights
from sihg.minimax.callbacks import Progress
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem

__all__ = [
    "ObservedLipschitz",
    "distance",
    "estimate_constants",
    "estimate_curvature",
    "explicit_bound",
    "objective",
    "saddle_norm_squared",
]


def saddle_norm_squared(problem: Problem, w: Weights, delta: Blocks) -> float:
    """Return ||F(w, delta)||^2, the squared distance of 0 to the saddle subdifferential.

    Args:
        problem: The problem.
        w: A point, in the form of w0.
        delta: A point, in the form of delta0.
    Returns:
        0 exactly at stationary points; infinite outside the domain of f and g.
    Example:
        >>> game = Problem.bilinear(torch.ones(1, 1, 1))
        >>> saddle_norm_squared(game, torch.tensor([3.0]), torch.tensor([[4.0]]))
        25.0
    """
    return flat_saddle_norm_squared(problem, problem.w_layout.pack(w), problem.delta_layout.pack(delta))


def flat_saddle_norm_squared(problem: Problem, w: Tensor, delta: Tensor) -> float:
    """Return ||F||^2 at flat vectors."""
    g_w, g_delta = problem.gradients(w, delta)
    return float(problem.distance_f(w, -g_w) ** 2 + problem.distance_g(delta, g_delta) ** 2)


def objective(problem: Problem, w: Weights, delta: Blocks) -> float:
    """Return f(w) + sum_i phi_i(w, delta_i) - sum_i g_i(delta_i).

    Args:
        problem: The problem.
        w: A point, in the form of w0.
        delta: A point, in the form of delta0.
    Returns:
        The value; infinite where f or a g_i is.
    Example:
        >>> game = Problem.bilinear(torch.ones(1, 1, 1))
        >>> objective(game, torch.tensor([3.0]), torch.tensor([[4.0]]))
        12.0
    """
    flat_w, rows = problem.w_layout.pack(w), problem.delta_layout.pack(delta)
    phi = problem.coupling.phi(flat_w, rows, problem.all).sum()
    return float(problem.value_f(flat_w) + phi - problem.value_g(rows))


def distance(problem: Problem, w: Weights, delta: Blocks, w_star: Weights, delta_star: Blocks) -> float:
    """Return ||(w, delta) - (w*, delta*)||, with all points in the forms of w0 and delta0.

    Example:
        >>> from sihg.minimax import zoo
        >>> benchmark = zoo.get("weak-mvi")
        >>> w, delta = benchmark.solution
        >>> distance(benchmark.problem, w + 3, delta + 4, w, delta)
        5.0
    """
    apart_w = problem.w_layout.pack(w) - problem.w_layout.pack(w_star)
    apart_delta = problem.delta_layout.pack(delta) - problem.delta_layout.pack(delta_star)
    return float(torch.cat((apart_w, apart_delta)).norm())


def explicit_bound(
    problem: Problem, w_star: Weights, delta_star: Blocks, sigma: float, tau: float, *, one_block: bool = False
) -> float:
    """Return the bound of Theorem 1 on sum_k E||F(w^k, delta-hat^k)||^2 from the problem's start, for theta = 1.

    Args:
        problem: The problem.
        w_star: The solution, in the form of w0.
        delta_star: The solution, in the form of delta0.
        sigma: The step size of w.
        tau: The step size of delta.
        one_block: Treat delta as one block, as DSI-HG does; then it is the bound of Corollary 3.
    Returns:
        The bound; infinite if the steps are outside the general condition, or L11, L12 or rho is not known.
    Example:
        >>> game = Problem.bilinear(torch.ones(1, 1, 1), torch.ones(1), constants={"L11": 0, "L12": 1})
        >>> round(explicit_bound(game, torch.zeros(1), torch.zeros(1, 1), 0.1, 0.1), 6)
        428.571429
    """
    c, n = problem.constants, 1 if one_block else problem.n
    monotone = bool(c.mu) or problem.bilinear_in_both  # then rho = 0
    if c.L11 is None or c.L12 is None or (c.rho is None and not monotone):
        return inf
    factor = steps.bound_factor(sigma, tau, L11=c.L11, L12=steps.coupling_constant(c, n), n=n, rho=c.rho or 0.0)
    w_part = float((problem.w_layout.pack(w_star) - problem.w0).square().sum()) / (2 * sigma)
    delta_part = float((problem.delta_layout.pack(delta_star) - problem.delta0).square().sum()) / (2 * tau)
    return factor * (w_part + n * delta_part)


def estimate_constants(problem: Problem, *, iterations: int = 30, seed: int = 0) -> Constants:
    """Estimate L11, L12, L12_block and L22 near the start, by power iteration on differences of gradients.

    Each is an observed ratio ||change of gradient|| / ||change of variable||: a lower bound, local unless phi is
    quadratic. The cost is a few gradients per iteration.

    Args:
        problem: The problem.
        iterations: The number of power iterations.
        seed: The seed of the first directions.
    Returns:
        The estimates, with the rho and mu that the problem knows.
    Example:
        >>> game = Problem.bilinear(3 * torch.eye(2, dtype=torch.float64)[None])
        >>> round(estimate_constants(game).L12, 6)
        3.0
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
    for _ in range(iterations):  # |H_dw|, forth and back
        u = (problem.gradient_delta(w0 + h * _unit(v), delta0, problem.all) - g_delta) / h
        v = (problem.gradient_w(w0, delta0 + h * _unit(u), problem.all) - g_w) / h
        L12 = max(L12, float(u.norm()), float(v.norm()))
    L22 = estimate_curvature(problem, iterations=iterations, seed=seed)
    strongest = by_block(problem, u).topk(min(4, problem.n)).indices.tolist()
    L12_block = max(_block_coupling(problem, i, h, random_like(w0), g_delta, iterations) for i in strongest)
    noise = 1e-6 * max(L11, L12, L22)  # differences of rounding, not of gradients
    L11, L22 = (0.0 if value < noise else value for value in (L11, L22))
    known = problem.constants
    source = "estimates at the start (local lower bounds)"
    lipschitz = {"L11": L11, "L12": max(L12, L12_block), "L12_block": L12_block, "L22": L22}
    return Constants(**lipschitz, rho=known.rho, mu=known.mu, source=source)


def estimate_curvature(problem: Problem, *, iterations: int = 30, seed: int = 0) -> float:
    """Estimate L22 near the start likewise; phi is separable in the blocks, so all are tried at once.

    Example:
        >>> from sihg.minimax import zoo
        >>> benchmark = zoo.get("quadratic")
        >>> 0 < estimate_curvature(benchmark.problem) <= 1.01 * benchmark.constants.L22
        True
    """
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
    """Estimate max_u ||grad_w phi_i(w, d + hu) - grad_w phi_i(w, d)|| / h by power iteration."""
    index, d = problem.only(i), problem.delta_layout.block(problem.delta0, i)
    g_i, g_w_i = problem.delta_layout.block(g_delta, i), problem.gradient_w(problem.w0, d, index)
    largest = 0.0
    for _ in range(max(5, iterations // 3)):
        u = (problem.gradient_delta(problem.w0 + h * _unit(v), d, index) - g_i) / h
        v = (problem.gradient_w(problem.w0, d + h * _unit(u), index) - g_w_i) / h
        largest = max(largest, float(v.norm()))
    return largest


class ObservedLipschitz:
    """A callback for `solve` that keeps the largest Lipschitz ratios between consecutive iterates.

    They are lower bounds of L11, L12 and L22 near the iterates. Its gradients are not counted.

    Args:
        problem: The problem that is solved.
    Example:
        >>> from sihg.minimax import solve, zoo
        >>> problem = zoo.get("weak-mvi").problem
        >>> observed = ObservedLipschitz(problem)
        >>> result = solve(problem, iterations=5, callback=observed)
        >>> round(observed.L12, 6)
        1.0
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.L11 = self.L12 = self.L22 = 0.0
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, progress: Progress) -> None:
        """Compare this iterate with the previous one."""
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
    """Return the norm of each block of a flat delta."""
    squares = torch.zeros(problem.n, dtype=delta.dtype, device=delta.device)
    return squares.index_add_(0, _block_of_each_entry(problem), delta * delta).sqrt()


def _block_of_each_entry(problem: Problem) -> Tensor:
    sizes = torch.tensor([shape.numel() for shape in problem.delta_layout.shapes])
    return torch.repeat_interleave(torch.arange(problem.n), sizes).to(problem.w0.device)


def _small(problem: Problem) -> float:
    """Return a length for differences of gradients: the square root of rounding, relative to the start."""
    size = max(1.0, float(problem.w0.norm()), float(problem.delta0.norm()))
    return float(torch.finfo(problem.w0.dtype).eps ** 0.5 * size)
