"""The loop: why it stops, what a callback sees, and whose memory it writes."""

import os
import signal
from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.core.prox import Box, SquaredL2
from sihg.minimax import METHODS, LinearMap, Problem, Progress, measure, solve, zoo
from tests.minimax.problems import nonlinear

STEPS: dict[str, Any] = {"sigma": 0.08, "tau": 0.05}


def test_measuring_changes_neither_the_path_nor_the_count() -> None:
    problem = nonlinear(3).problem()
    quiet = solve(problem, "ssi-hg", **STEPS, iterations=40, record_every=None)
    loud = solve(problem, "ssi-hg", **STEPS, iterations=40, record_every=1)
    assert len(quiet.history) == 0
    assert torch.equal(quiet.state.inner.w, loud.state.inner.w)
    assert torch.equal(quiet.state.inner.delta, loud.state.inner.delta)
    assert quiet.state.w_gradients == loud.state.w_gradients


def test_seed_and_blocks_decide_the_path() -> None:
    problem = nonlinear(4).problem()

    def end(**settings: Any) -> Tensor:
        return solve(problem, "ssi-hg", **STEPS, iterations=9, record_every=None, **settings).state.inner.delta

    assert torch.equal(end(seed=1), end(seed=1))
    assert not torch.equal(end(seed=1), end(seed=2))
    moved = end(blocks=[2] * 9)
    start = problem.delta0
    assert torch.equal(moved.view(4, 3)[[0, 1, 3]], start.view(4, 3)[[0, 1, 3]])
    assert not torch.equal(moved.view(4, 3)[2], start.view(4, 3)[2])


def test_drawn_blocks_are_uniform() -> None:
    from sihg.minimax._stepper import draw_blocks

    draws = draw_blocks(0, 5, 0)
    drawn = torch.tensor([next(draws) for _ in range(20_000)])
    counts = torch.bincount(drawn, minlength=5)
    assert (counts - 4000).abs().max() < 4 * (20_000 * 0.2 * 0.8) ** 0.5
    later = draw_blocks(0, 5, 5000)
    assert [next(later) for _ in range(9000)] == drawn[5000:14_000].tolist()  # over two ends of what is drawn at once


def test_tolerance_and_callback_stop() -> None:
    benchmark = zoo.get("quadratic")
    result = solve(benchmark.problem, "ssi-hg", tolerance=1e-4, iterations=5000)
    assert result.stopped.startswith("tolerance reached at iteration ")
    assert result.history["saddle_norm_squared"][-1] <= 1e-8 < result.history["saddle_norm_squared"][-2]
    again = solve(benchmark.problem, "ssi-hg", iterations=100, callback=lambda p: p.iteration == 13)
    assert again.stopped == "stopped by the callback at iteration 13"
    assert again.state.iteration == 13
    assert again.history["iteration"][-1] == 13
    assert benchmark.solution is not None
    arrived = Problem(lambda w, d, _: (w * d).sum(1), torch.zeros(1), torch.zeros(1, 1))
    assert solve(arrived, "gda", sigma=1, tau=1, tolerance=0.0).stopped.startswith("tolerance reached at the start")


def test_callback_sees_the_iterate() -> None:
    plain = nonlinear(3)
    seen: list[Progress] = []
    result = solve(plain.problem(), "ssi-hg", **STEPS, iterations=4, record_every=2, callback=lambda p: seen.append(p))
    assert [p.iteration for p in seen] == [1, 2, 3, 4]
    assert [p.row is not None for p in seen] == [False, True, False, True]
    assert isinstance(seen[-1].w, Tensor)
    assert torch.equal(seen[-1].w, torch.as_tensor(result.w))
    assert torch.as_tensor(seen[-1].delta).shape == (3, 3)


@pytest.mark.parametrize(
    "method", [name for name, kind in METHODS.items() if not (kind.bilinear_only or kind.adapts_itself)]
)
def test_divergence_keeps_the_last_finite_iterate(method: str) -> None:
    def steep(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (delta * w**3).sum(1) - (w**4).sum() / 4

    problem = Problem(steep, torch.ones(2), torch.ones(3, 2), constants={"L22": 0.0})
    result = solve(problem, method, sigma=2.0, tau=2.0, iterations=200, record_every=1)
    assert result.stopped.startswith("diverged at iteration ")
    assert "not finite" in result.stopped
    assert torch.as_tensor(result.w).isfinite().all()
    assert torch.as_tensor(result.delta).isfinite().all()
    assert f"iteration {result.state.iteration + 1}:" in result.stopped
    assert result.history["iteration"][-1] == result.state.iteration


def test_interrupt_ends_after_the_iteration() -> None:
    def press(progress: Progress) -> None:
        if progress.iteration == 7:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    result = solve(nonlinear(2).problem(), "ssi-hg", **STEPS, iterations=100, callback=press)
    assert result.stopped.startswith("interrupted at iteration ")
    assert result.state.iteration in (7, 8)
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_is_at_once() -> None:
    def press(progress: Progress) -> None:
        if progress.iteration >= 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        solve(nonlinear(2).problem(), "ssi-hg", **STEPS, iterations=100, callback=press)


def test_zero_iterations() -> None:
    result = solve(nonlinear(2).problem(), "ssi-hg", **STEPS, iterations=0)
    assert result.stopped == "0 iterations done"
    assert result.history["iteration"] == [0]


def test_float32_works_and_stays_float32() -> None:
    plain = nonlinear(3)
    problem = Problem(
        lambda w, d, i: plain.coupling(w.double(), d.double(), i).float(),
        plain.w0.float(),
        plain.delta0.float(),
        SquaredL2(0.1),
        Box(-0.5, 0.4),
    )
    result = solve(problem, "ssi-hg", iterations=20)
    assert torch.as_tensor(result.w).dtype == torch.float32


def test_observed_lipschitz_ratios_stay_below_the_constants() -> None:
    benchmark = zoo.get("weak-mvi-nonlinear", n=4)
    seen = measure.ObservedLipschitz(benchmark.problem)
    solve(benchmark.problem, "ssi-hg", iterations=50, record_every=None, callback=seen)
    c = benchmark.constants
    assert 0 < seen.L11 <= (c.L11 or 0)
    assert 0.9 < seen.L12 <= (c.L12 or 0)
    assert 0 < seen.L22 <= (c.L22 or 0)


@pytest.mark.parametrize("method", ["ssi-hg", "dsi-hg", "spdhg"])
def test_a_gradient_that_is_a_view_of_delta(method: str) -> None:
    """An identity map hands delta itself back; writing delta in place must not change the kept gradient."""
    w0, delta0 = torch.ones(3, dtype=torch.float64), torch.full((1, 3), 0.5, dtype=torch.float64)
    settings: dict[str, Any] = {"sigma": 0.3, "tau": 0.3, "iterations": 20, "record_every": None}
    views = Problem.bilinear([LinearMap(lambda w: w, lambda d: d)], w0, delta0, g=Box(-1, 1))
    copies = Problem.bilinear(torch.eye(3, dtype=torch.float64)[None], w0, delta0, g=Box(-1, 1))
    one, other = (solve(problem, method, **settings).state.inner for problem in (views, copies))
    torch.testing.assert_close(one.w, other.w, rtol=0, atol=1e-14)
    torch.testing.assert_close(one.delta, other.delta, rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", ["ssi-hg", "dsi-hg", "spdhg"])
def test_adjoints_keep_their_own_memory(method: str) -> None:
    """An adjoint may return a tensor that it keeps, or an expanded one; the solvers write into neither."""
    zero = torch.zeros(5, dtype=torch.float64)
    kept = LinearMap(lambda w: 0 * w[:1], lambda _: zero)
    expanded = LinearMap(lambda w: w.sum()[None], lambda d: d.expand(5))
    matrices = torch.stack([torch.zeros(1, 5), torch.ones(1, 5)]).double()
    w0, delta0 = torch.ones(5, dtype=torch.float64), torch.full((2, 1), 0.3, dtype=torch.float64)
    settings: dict[str, Any] = {"sigma": 0.1, "tau": 0.1, "iterations": 30, "record_every": None}
    ends = [
        solve(Problem.bilinear(blocks, w0, delta0, SquaredL2(1.0), Box(-1, 1)), method, **settings).state.inner
        for blocks in ([kept, expanded], matrices)
    ]
    torch.testing.assert_close(ends[0].w, ends[1].w, rtol=0, atol=1e-14)
    torch.testing.assert_close(ends[0].delta, ends[1].delta, rtol=0, atol=1e-14)
    assert not zero.any()


def test_gradients_that_autograd_expands() -> None:
    """Blocks that are numbers, and a coupling through w.sum(), whose gradient is an expanded tensor."""
    problem = Problem(lambda w, d, _: d * w.sum(), torch.ones(3), torch.ones(4), f=SquaredL2(1.0), g=SquaredL2(1.0))
    result = solve(problem, "ssi-hg", sigma=0.1, tau=0.1, iterations=30)
    assert result.stopped == "30 iterations done"
    assert torch.as_tensor(result.delta).shape == (4,)


def test_large_finite_numbers_are_not_divergence() -> None:
    problem = Problem(lambda w, d, _: 1e-30 * (d @ w), torch.full((1000,), 1e36), torch.full((1, 1000), 1e-6))
    assert solve(problem, "gda", sigma=1e-6, tau=1e-6, iterations=2, record_every=None).stopped == "2 iterations done"


def test_row_at_divergence_counts_what_was_done() -> None:
    problem = zoo.get("weak-mvi").problem
    result = solve(problem, "gda", sigma=50, tau=50, iterations=2000, record_every=7)
    assert result.stopped.startswith("diverged")
    assert result.history["w_gradients"][-1] == result.state.w_gradients


def test_a_callback_that_raises_leaves_signals_and_gradients_as_they_were() -> None:
    def fail(progress: Progress) -> None:
        raise RuntimeError(f"at {progress.iteration}")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="at 1"):
        solve(nonlinear(2).problem(), "ssi-hg", **STEPS, iterations=5, callback=fail)
    assert signal.getsignal(signal.SIGTERM) is before
    assert torch.is_grad_enabled()
