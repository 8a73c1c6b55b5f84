"""Where plain descent ascent fails on the zoo, what arrives instead, and what no method of its kind solves."""

import pytest
import torch

from sihg.minimax import Progress, measure, solve, zoo


def closest(benchmark: zoo.Benchmark, method: str, iterations: int, **given: float) -> tuple[float, float]:
    """Return the smallest ||F||^2 in the last half of a solve, and ||F||^2 at its end."""
    problem = benchmark.problem
    seen: list[float] = []

    def watch(progress: Progress) -> None:
        if progress.iteration % 5 == 0:
            seen.append(measure.saddle_norm_squared(problem, progress.w, progress.delta))

    solve(problem, method, iterations=iterations, record_every=None, callback=watch, **given)  # type: ignore[arg-type]
    return min(seen[len(seen) // 2 :]), seen[-1]


@pytest.mark.parametrize(
    ("name", "options", "gda_step", "extragradient_step", "iterations"),
    [
        ("weak-mvi", {}, 0.1, 0.5, 300),
        ("lower-bound", {"c": 0.1}, 0.1, 0.28, 500),
        ("dirac-gan", {}, 0.1, 1.0, 300),
        ("global-forsaken", {}, 0.1, 0.2, 300),
        ("polar-game", {"a": 1 / 3, "side": 1.1}, 0.05, 0.3, 300),
        ("matrix-game", {}, 0.1, 0.5, 300),
        ("wgan-mean", {}, 0.1, 0.9, 600),
        ("wgan-covariance", {}, 0.02, 0.1, 2000),
        ("fair-groups", {}, 0.08, 0.12, 1500),
    ],
)
def test_descent_ascent_circles_and_extragradient_arrives(
    name: str, options: dict[str, float], gda_step: float, extragradient_step: float, iterations: int
) -> None:
    benchmark = zoo.get(name, **options)
    step = {"sigma": gda_step, "tau": gda_step}
    assert closest(benchmark, "gda", iterations, **step)[0] > 0.01
    step = {"sigma": extragradient_step, "tau": extragradient_step}
    assert closest(benchmark, "extragradient", iterations, **step)[1] < 1e-6


@pytest.mark.parametrize("method", ["gda", "extragradient", "optimistic"])
@pytest.mark.parametrize(
    ("name", "steps"), [("bilinearly-coupled", (0.002, 0.005)), ("polar-game", (0.002, 0.008)), ("forsaken", (0.02,))]
)
def test_cycles_that_hold_extragradient_too(name: str, steps: tuple[float, ...], method: str) -> None:
    for step in steps:
        nearest, _ = closest(zoo.get(name), method, 1500, sigma=step, tau=step)
        assert nearest > 0.01


def test_sixth_order_needs_a_slow_descent() -> None:
    """J = [[-10 s, 6 s], [-6 t, 2 t]] at 0 has a positive trace only where t > 5 s; otherwise 0 repels."""
    benchmark = zoo.get("sixth-order")
    assert benchmark.solution is not None
    equal = solve(benchmark.problem, "gda", sigma=0.02, tau=0.02, iterations=1000, record_every=None)
    assert measure.saddle_norm_squared(benchmark.problem, equal.w, equal.delta) == 0  # stationary, but a corner
    assert torch.as_tensor(equal.w).abs() == torch.as_tensor(equal.delta).abs() == 2
    slow = solve(benchmark.problem, "gda", sigma=0.01, tau=0.1, iterations=1500, record_every=None)
    assert measure.distance(benchmark.problem, slow.w, slow.delta, *benchmark.solution) < 1e-3
    fast = solve(benchmark.problem, "gda", sigma=0.03, tau=0.1, iterations=1500, record_every=None)
    assert measure.distance(benchmark.problem, fast.w, fast.delta, *benchmark.solution) > 0.1


@pytest.mark.parametrize("c", [0.2, 0.4])
def test_the_lower_bound_of_eg_plus_is_sharp(c: float) -> None:
    """With step 1/L, EG+ converges just below the ratio 1 - 2 c and diverges just above."""
    benchmark = zoo.get("lower-bound", c=c, L=4.0)
    start = measure.saddle_norm_squared(benchmark.problem, benchmark.problem.w0, benchmark.problem.delta0[None])
    for ratio, converges in ((1 - 2 * c - 0.05, True), (1 - 2 * c + 0.05, False)):
        _, last = closest(benchmark, "eg+", 600, sigma=0.25, tau=0.25, ratio=ratio)
        assert (last < 1e-3 * start) if converges else (last > 10 * start)


def test_at_the_limit_no_ratio_of_eg_plus_converges() -> None:
    benchmark = zoo.get("lower-bound")
    for ratio in (0.02, 0.1, 0.5):
        nearest, last = closest(benchmark, "eg+", 400, sigma=0.5, tau=0.5, ratio=ratio)
        assert 0.9 < nearest <= last


def test_no_function_has_the_field_of_polar_game() -> None:
    """Mixed derivatives of a phi are equal; here they are of opposite signs."""
    problem = zoo.get("polar-game").problem
    z = torch.tensor([0.3, 0.6], dtype=torch.float64)
    J = torch.autograd.functional.jacobian(lambda z: torch.cat(problem.gradients(z[:1], z[1:])), z)
    assert isinstance(J, torch.Tensor)
    assert abs(float(J[0, 1] - J[1, 0])) > 1


def test_polar_game_turns_inwards_only_inside_its_inner_cycle() -> None:
    problem = zoo.get("polar-game").problem
    for radius, inwards in ((0.7, True), (0.8, False), (0.95, False), (1.05, True)):
        z = radius * torch.tensor([0.6, 0.8], dtype=torch.float64)
        g_w, g_delta = problem.gradients(z[:1], z[1:])
        outward = -z[:1] @ g_w + z[1:] @ g_delta  # <z, -F>
        assert (outward < 0) == inwards


@pytest.mark.slow
def test_the_best_known_value_of_the_robust_network() -> None:
    """It is reached from seed 10's start; from the problem's own, descent ascent ends at a higher stationary point."""
    benchmark = zoo.get("robust-network")
    problem, best = benchmark.problem, benchmark.best_value
    assert best is not None
    values = []
    for seed in (None, 10):
        if seed is not None:
            draw = torch.Generator().manual_seed(seed)
            problem.w0 = (1 + seed % 3) * torch.randn(problem.w0.shape, generator=draw, dtype=torch.float64)
        result = solve(problem, "gda", sigma=1.0, tau=1.0, iterations=2000, record_every=None)
        assert measure.saddle_norm_squared(problem, result.w, result.delta) < 1e-10
        values.append(measure.objective(problem, result.w, result.delta))
    assert values == pytest.approx([0.4723911420651622, best], abs=1e-9)
