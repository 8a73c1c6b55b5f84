"""Theorem 2 and Corollary 4 on strongly monotone problems: the proof's last inequality with its constants."""

import numpy as np
import pytest

from sihg.minimax import Progress, solve, zoo
from sihg.minimax import step_sizes as steps

SEEDS = 20


def squared_distances(benchmark: zoo.Benchmark, method: str, seed: int, at: list[int]) -> np.ndarray:
    """(|w - w*|^2, |delta - delta*|^2) after each number of iterations in `at`."""
    problem, solution = benchmark.problem, benchmark.solution
    assert solution is not None
    w, delta = problem.w_layout.pack(solution.w), problem.delta_layout.pack(solution.delta)
    found = []

    def look(progress: Progress) -> None:
        if progress.iteration in at:
            s = progress.state
            found.append([float((s.w - w).square().sum()), float((s.delta - delta).square().sum())])

    solve(problem, method, iterations=max(at), record_every=None, seed=seed, callback=look)
    return np.array(found)


@pytest.mark.parametrize("n", [1, 4, 16])
@pytest.mark.parametrize("name", ["ridge", "quadratic"])
def test_last_inequality_of_the_proof(name: str, n: int) -> None:
    options = {"samples": 64, "features": 6} if name == "ridge" else {"dimension": 2}
    benchmark = zoo.get(name, n=n, **options)
    problem, solution, c = benchmark.problem, benchmark.solution, benchmark.constants
    assert solution is not None
    assert c.mu is not None
    chosen = steps.hybrid_steps(c, n, is_bilinear=problem.bilinear_in_both)
    sigma, tau, theta, mu = chosen.sigma, chosen.tau, chosen.theta, c.mu
    L12 = c.L12_block if c.L12_block is not None and n > 1 else c.L12
    assert c.L11 is not None
    assert L12 is not None
    kappa = steps.kappa(sigma, tau, L11=c.L11, L12=L12, n=n)
    assert kappa <= 1 / 3 + 1e-12
    assert theta == pytest.approx(steps.contraction(sigma, tau, mu=mu, n=n), rel=1e-15)
    last = min(int(np.log(1e-7) / np.log(theta)), 1500)
    at = [1, 2, 5, last // 10, last // 3, last]
    mean = np.mean([squared_distances(benchmark, "ssi-hg", seed, at) for seed in range(SEEDS if n > 1 else 1)], axis=0)
    start_w = float((problem.w_layout.pack(solution.w) - problem.w0).square().sum())
    start_delta = float((problem.delta_layout.pack(solution.delta) - problem.delta0).square().sum())
    start = (1 + mu * sigma) / (2 * sigma) * start_w + n * (1 + mu * tau) / (2 * tau) * start_delta
    left = (1 + mu * sigma - 2 * kappa) / (2 * sigma) * mean[:, 0] + n * (1 + mu * tau) / (2 * tau) * mean[:, 1]
    assert (left <= theta ** np.array(at) * start).all()
    contraction = (mean[-1].sum() / (start_w + start_delta)) ** (1 / last)
    assert contraction <= theta


@pytest.mark.parametrize("name", ["ridge", "quadratic"])
def test_corollary_4(name: str) -> None:
    """DSI-HG takes all blocks as one; its contraction is Corollary 4's."""
    benchmark = zoo.get(name, n=4)
    theta = steps.hybrid_steps(benchmark.constants, 1, is_bilinear=benchmark.problem.bilinear_in_both).theta
    first, last = squared_distances(benchmark, "dsi-hg", 0, [1, 301]).sum(1)
    assert last <= first
    assert (last / first) ** (1 / 300) <= theta
