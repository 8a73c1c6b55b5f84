"""Adaptive steps against the rule as it is written, and what they must not break."""

import warnings
from math import inf, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.core.prox import Box, ElasticNet, Simplex, SquaredL2
from sihg.minimax import METHODS, Problem, Progress, SolveState, compare, solve, zoo
from sihg.minimax.comparison import Comparison
from tests.minimax.problems import nonlinear
from tests.minimax.twins import Plain
from tests.refused import refused

ADAPTIVE: dict[str, Any] = {"steps": "adaptive", "record_every": None}


def linear_in_delta(n: int) -> Plain:
    """A coupling that is nonlinear in w, and linear in delta: its implicit step is exact after one gradient."""
    draw = torch.Generator().manual_seed(3)
    B = torch.randn(n, 3, 5, generator=draw, dtype=torch.float64)
    w0 = torch.randn(5, generator=draw, dtype=torch.float64)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        return (torch.tanh(B[index] @ w) * delta).sum(1)

    return Plain(phi, w0, torch.zeros(n, 3, dtype=torch.float64), ElasticNet(0.02, 0.1), Box(-0.5, 0.4))


def next_steps(sigma: float, tau: float, r: float, k: int, nu: float) -> tuple[float, float]:
    """Return the next sigma and tau, at the same tau / sigma."""
    factor = min((1 - (k + 1) ** -0.5) * (nu / r if r else inf), 1 + (k + 1) ** -0.6) if r else 1.0
    if r > nu:
        factor = min(factor, 0.9)
    return factor * sigma, factor * tau


@pytest.mark.parametrize("n", [3, 1])
def test_ssi_hg_by_hand(n: int) -> None:
    """Five iterations with every gradient taken anew; the first steps are so large that trials fail."""
    p, nu, blocks = linear_in_delta(n), 0.99, [0, n - 1, n // 2, 0, 0]
    sigma, tau, rejected = 2.0, 1.5, 0
    w_before, delta_before = w, delta = p.w0, p.delta0
    last = sigma
    for k, i in enumerate(blocks, 1):
        while True:
            q = p.grad_w(w_before, delta_before) - (n - 1) * (p.grad_w(w, delta) - p.grad_w(w, delta_before))
            A = p.grad_w(w, delta)
            w_new = p.f.prox(w - sigma * (A + last / sigma * (A - q)), sigma)
            delta_new = delta.clone()
            delta_new[i] = p.implicit(w_new, delta, tau)[i]
            dw, dd = float((w_new - w).norm()), float((delta_new - delta).norm())
            part_w = float((p.grad_w(w_new, delta) - p.grad_w(w, delta)).norm())
            part_d = float((p.grad_w(w_new, delta_new) - p.grad_w(w_new, delta)).norm())
            if n == 1:
                e = float((p.grad_w(w_new, delta_new) - A).norm())
                r = sqrt(sigma) * e / sqrt(2 / 9 * dw**2 / sigma + 2 / 3 * dd**2 / tau)
            else:
                x, y = sigma * part_w / dw, sqrt(sigma * tau * n) * (part_d / dd if dd else 0.0)
                r = x + sqrt(x**2 + y**2)
                assert (r <= 1) == (2 * x + y**2 <= 1)
            used = sigma
            sigma, tau = next_steps(sigma, tau, r, k, nu)
            if r <= nu:
                break
            rejected += 1
        last = used
        w_before, delta_before, w, delta = w, delta, w_new, delta_new
    problem = p.problem(constants={"L22": 0.0})
    result = solve(problem, sigma=2.0, tau=1.5, blocks=blocks, iterations=5, **ADAPTIVE)
    assert result.state.adaptive is not None
    assert result.state.adaptive.rejected == rejected > 0
    torch.testing.assert_close(result.w, w, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.delta, delta, rtol=0, atol=1e-12)
    assert (result.steps.sigma, result.steps.tau) == pytest.approx((sigma, tau), rel=1e-9)


def test_extragradient_by_hand() -> None:
    p = nonlinear(2)
    s, z, rejected = 3.0, (p.w0, p.delta0), 0

    def forward(at: tuple[Tensor, Tensor], gradient_at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        moved = at[0] - s * p.grad_w(*gradient_at), at[1] + s * p.grad_delta(*gradient_at)
        return p.f.prox(moved[0], s), p.g.prox(moved[1], s, batch=1)

    for k in (1, 2):
        while True:
            ahead = forward(z, z)
            changed = torch.cat([(grad(*ahead) - grad(*z)).flatten() for grad in (p.grad_w, p.grad_delta)])
            moved = torch.cat([(a - b).flatten() for a, b in zip(ahead, z, strict=True)])
            r = s * float(changed.norm() / moved.norm())
            new = forward(z, ahead)
            s, _ = next_steps(s, s, r, k, 0.9)
            if r <= 0.9:
                break
            rejected += 1
        z = new
    result = solve(p.problem(), "extragradient", sigma=3.0, tau=3.0, iterations=2, **ADAPTIVE)
    assert rejected > 0
    torch.testing.assert_close(result.w, z[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(result.delta, z[1], rtol=0, atol=1e-12)
    assert result.steps.sigma == pytest.approx(s, rel=1e-9)


@pytest.mark.parametrize("name", ["robust-logistic", "weak-mvi-nonlinear"])
def test_every_accepted_step_of_ssi_hg_passes(name: str) -> None:
    """2 l11 sigma + l12^2 sigma tau n <= 1 with the local constants of the step, measured anew."""
    problem = zoo.get(name).problem
    n, checked = problem.n, 0
    w, delta, weight = problem.w0, problem.delta0.clone(), 0.0

    def check(progress: Progress) -> None:
        nonlocal w, delta, weight, checked
        s = progress.state
        sigma = s.sigma  # type: ignore[attr-defined]
        with torch.no_grad():
            A, middle, after = (
                problem.gradient_w(*at, problem.all) for at in ((w, delta), (s.w, delta), (s.w, s.delta))
            )
        x = sigma * float((middle - A).norm() / (s.w - w).norm())
        moved = float((s.delta - delta).norm())
        l12 = float((after - middle).norm()) / moved if moved else 0.0
        if weight:
            assert 2 * x + l12**2 * n * (sigma * weight) ** 2 <= 1
            checked += 1
        w, delta, weight = s.w, s.delta.clone(), sqrt(progress.at.steps.tau / progress.at.steps.sigma)

    solve(problem, iterations=80, callback=check, **ADAPTIVE)
    assert checked == 79


@pytest.mark.parametrize("scale", [0.01, 100.0])
@pytest.mark.parametrize("method", ["ssi-hg", "dsi-hg", "spdhg", "extragradient", "eg+", "optimistic"])
def test_steps_settle_near_the_bound_of_a_bilinear_problem(method: str, scale: float) -> None:
    """If all singular values are equal, the local constant is the global one, and the limit of the steps is known."""
    n = 4
    Q = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    w0 = torch.ones(8, dtype=torch.float64)
    problem = Problem.bilinear(scale * Q.reshape(n, 2, 8), w0, g=SquaredL2(0.01 * scale))
    result = solve(problem, method, sigma=1e-3 / scale, tau=1e-3 / scale, iterations=150, **ADAPTIVE)
    blocks = n if method in ("ssi-hg", "spdhg") else 1
    settled = sqrt(result.steps.sigma * result.steps.tau * blocks) * scale
    assert 0.5 * METHODS[method].bound < settled <= METHODS[method].bound


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["ridge", "nonlinear"])
def test_adaptive_steps_continue_exactly(method: str, name: str, tmp_path: Path) -> None:
    """35 + 10 iterations, with a balance at 40, equal 45 in every bit and count, in memory and through a file."""
    if METHODS[method].bilinear_only and name != "ridge":
        pytest.skip(f"{method} solves bilinear problems only")
    problem = zoo.get("ridge").problem if name == "ridge" else nonlinear(4).problem()
    settings: dict[str, Any] = {"seed": 5, "steps": "adaptive"}
    whole = solve(problem, method, iterations=45, record_every=5, **settings)
    half = solve(problem, method, iterations=35, record_every=5, **settings)
    loaded = SolveState.load(half.state.save(tmp_path / "state.safetensors"))
    for state in (half.state, loaded):
        rest = solve(problem, method, iterations=10, state=state, record_every=5)
        for variable in ("w", "delta"):
            assert torch.equal(getattr(rest.state.inner, variable), getattr(whole.state.inner, variable))
        assert rest.steps == whole.steps
        for column in set(whole.history.columns) - {"seconds"}:
            assert half.history[column] + rest.history[column] == whole.history[column]


@pytest.mark.parametrize("n", [1, 3])
def test_failed_trials_are_counted(n: int) -> None:
    """The count is that of the calls, from steps so large that many trials fail."""
    calls: list[int] = []
    plain = nonlinear(n)

    def counted(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        if w.requires_grad:
            calls.append(len(index))
        return plain.coupling(w, delta, index)

    problem = Problem(counted, plain.w0, plain.delta0, plain.f, plain.g, {"L11": 1, "L12": 1, "L22": 1})
    calls.clear()
    result = solve(problem, sigma=500.0, tau=0.1, iterations=11, **ADAPTIVE)
    assert result.state.adaptive is not None
    assert result.state.adaptive.rejected >= 1
    # A failed trial costs the gradients at its end, and the two at its start are remembered.
    assert sum(calls) == result.state.w_gradients
    assert result.state.w_gradients == n + (n + 1 if n > 1 else 1) * (11 + result.state.adaptive.rejected)


def test_one_block_equals_dsi_hg() -> None:
    problem = nonlinear(1).problem()
    one, other = (solve(problem, method, iterations=60, **ADAPTIVE) for method in ("ssi-hg", "dsi-hg"))
    assert torch.equal(torch.as_tensor(one.w), torch.as_tensor(other.w))
    assert one.steps.sigma == other.steps.sigma
    assert one.state.w_gradients == other.state.w_gradients


FAST = [name for name, kind in METHODS.items() if name not in ("gda", "mgda", "feg") and not kind.adapts_itself]


@pytest.mark.parametrize("method", FAST)
def test_arrives_on_ridge_in_fewer_gradients(method: str) -> None:
    """From the theorem's steps, with a tolerance of 1e-9 relative to the start."""
    problem = zoo.get("ridge").problem
    first = solve(problem, method, iterations=0, record_every=1).history["saddle_norm_squared"][0]
    settings: dict[str, Any] = {"iterations": 6000, "record_every": 5, "tolerance": 1e-5 * first**0.5}
    theorem, adaptive = (solve(problem, method, steps=rule, **settings) for rule in ("theorem", "adaptive"))
    assert adaptive.stopped.startswith("tolerance")
    costs = [result.state.w_gradients + result.state.delta_gradients for result in (theorem, adaptive)]
    assert costs[1] < 0.8 * costs[0]


def test_dict_of_weights_ragged_blocks_and_float32() -> None:
    shapes = [(2,), (1, 3), (4,)]

    def phi(w: dict[str, Tensor], delta: list[Tensor], index: Tensor) -> Tensor:  # noqa: ARG001
        return torch.stack([torch.sin(w["a"].sum() + w["b"][0]) * d.sum() - (d * d).sum() for d in delta])

    w0 = {"a": torch.ones(2, 2), "b": torch.ones(3)}
    problem = Problem(phi, w0, [torch.ones(shape) for shape in shapes], SquaredL2(0.5), [Box(-1, 1)] * 3)
    for method in ("ssi-hg", "dsi-hg", "extragradient", "optimistic", "eg+"):
        result = solve(problem, method, steps="adaptive", iterations=400)
        assert isinstance(result.w, dict)
        assert result.w["a"].dtype == torch.float32
        assert result.history["saddle_norm_squared"][-1] < 1e-6 * result.history["saddle_norm_squared"][0]


def test_a_coupling_that_is_not_smooth_stalls_with_a_reason() -> None:
    """grad_w phi jumps where w changes sign: the steps shrink there until the search gives up, at the solution."""
    problem = Problem(lambda w, d, _: (w.abs() * d).sum(1), torch.ones(1), torch.ones(2, 1), g=Box(0.5, 1))
    result = solve(problem, sigma=0.3, tau=0.3, steps="adaptive", iterations=300)
    assert result.stopped.startswith("stalled at iteration")
    assert float(torch.as_tensor(result.w).abs()) < 1e-9


def test_no_warning_and_one_note() -> None:
    """The theorem does not cover adaptive steps: that is said once, in the source of the steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solve(zoo.get("global-forsaken").problem, iterations=20, steps="adaptive")
    assert result.steps.source.startswith("adaptive: local estimates, no theorem's guarantee; first steps: Theorem 1")


def test_robust_regression_over_a_simplex() -> None:
    """Losses weighted by the worst distribution near the uniform one: the theorem's steps are far too small."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=draw, dtype=torch.float64)
    y = x @ torch.randn(8, generator=draw, dtype=torch.float64) + 0.3 * torch.randn(
        60, generator=draw, dtype=torch.float64
    )
    uniform = torch.full((1, 60), 1 / 60, dtype=torch.float64)

    def phi(w: Tensor, p: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return p @ (x @ w - y).square() / 2 - 2 * (p - uniform).square().sum(1)

    problem = Problem(phi, torch.zeros(8, dtype=torch.float64), uniform, SquaredL2(0.01), Simplex())
    norms = {
        rule: solve(problem, iterations=1000, steps=rule, record_every=1000).history["saddle_norm_squared"][-1]
        for rule in ("theorem", "adaptive")
    }
    assert norms["theorem"] > 1e-4
    assert norms["adaptive"] < 1e-12


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"steps": "adaptve"}, "unknown-steps", {"name": "adaptve"}),
        ({"steps": {"sgima": 0.1}}, "steps-form", {}),
        ({"steps": 0.1}, "steps-form", {"got": 0.1}),
        ({"steps": {"sigma": -1.0, "tau": 1.0}}, "step-size-range", {"name": "sigma"}),
        ({"method": "auto", "sigma": 0.1}, "auto-settings", {"name": "sigma"}),
    ],
)
def test_bad_steps(settings: dict[str, Any], code: str, values: dict[str, object]) -> None:
    with refused(code, **values):
        solve(nonlinear(2).problem(), **settings)


def test_numbers_are_the_keywords() -> None:
    problem = nonlinear(2).problem()
    one = solve(problem, steps={"sigma": 0.05, "tau": 0.04, "theta": 0.9}, iterations=5)
    other = solve(problem, sigma=0.05, tau=0.04, theta=0.9, iterations=5)
    assert torch.equal(torch.as_tensor(one.w), torch.as_tensor(other.w))
    assert one.steps == other.steps


def test_an_adaptive_state_goes_on_with_numbers_but_not_by_the_theorem() -> None:
    problem = nonlinear(2).problem()
    state = solve(problem, iterations=5, **ADAPTIVE).state
    with refused("state-is-adaptive"):
        solve(problem, state=state, steps="theorem")
    fixed = solve(problem, state=state, sigma=0.05, iterations=5, record_every=None)
    assert (fixed.steps.sigma, fixed.steps.tau) == (0.05, state.steps.tau)
    again = solve(problem, state=fixed.state, steps="adaptive", iterations=5, record_every=None)
    assert again.state.adaptive is not None


def test_a_comparison_keeps_adaptive_steps(tmp_path: Path) -> None:
    methods, settings = ["ssi-hg", "eg+"], {"iterations": 30, "record_every": 10}
    whole = compare("ridge", methods, steps="adaptive", **settings)  # type: ignore[arg-type]
    assert "--steps adaptive" in whole.command
    compare("ridge", methods, steps="adaptive", folder=tmp_path / "c", **{**settings, "iterations": 20})  # type: ignore[arg-type]
    resumed = Comparison.resumed(tmp_path / "c", 30)
    rows = [resumed.run(name) for name in methods]
    resumed.close()
    for row, other in zip(rows, whole.methods, strict=True):
        assert row.source.startswith("adaptive")
        assert (row.saddle_norm_squared, row.w_gradients, row.sigma) == (
            other.saddle_norm_squared,
            other.w_gradients,
            other.sigma,
        )
