"""The zoo's answers and constants are what they say."""

from math import sqrt

import pytest
import torch

from sihg.core.prox import SquaredL2
from sihg.minimax import measure, solve, zoo
from sihg.minimax import step_sizes as steps
from sihg.minimax._images import phantom
from tests.refused import refused

KNOWN = [name for name in zoo.names() if zoo.get(name).solution is not None]


def test_twelve_problems_with_answers() -> None:
    assert len(zoo.names()) == 12
    assert zoo.names() == KNOWN
    assert all(zoo.about(name) for name in zoo.names())


@pytest.mark.parametrize("name", KNOWN)
def test_solution_is_stationary(name: str) -> None:
    benchmark = zoo.get(name)
    assert benchmark.solution is not None
    assert measure.saddle_norm_squared(benchmark.problem, *benchmark.solution) < 1e-24


def random_point(benchmark: zoo.Benchmark, draw: torch.Generator, size: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A point within `size` of zero and inside the domains."""
    problem = benchmark.problem

    def ball(like: torch.Tensor) -> torch.Tensor:
        x = torch.randn(like.shape, generator=draw, dtype=like.dtype)
        return x * float(size * torch.rand((), generator=draw) / x.norm())

    return problem.prox_f(ball(problem.w0), 1e-9), problem.prox_g(ball(problem.delta0), 1e-9, problem.all)


LIPSCHITZ = [name for name in KNOWN if zoo.get(name).constants.lipschitz_known]


@pytest.mark.parametrize("name", LIPSCHITZ)
def test_lipschitz_constants_hold(name: str) -> None:
    benchmark = zoo.get(name)
    problem, c = benchmark.problem, benchmark.constants
    draw = torch.Generator().manual_seed(0)
    assert c.L11 is not None
    assert c.L12 is not None
    assert c.L22 is not None
    for _ in range(100):
        w, delta = random_point(benchmark, draw, 2.4)
        w2, delta2 = random_point(benchmark, draw, 2.4)
        a_w, a_delta = problem.gradients(w, delta)
        b_w, b_delta = problem.gradients(w2, delta)
        slack = 1e-12
        assert (b_w - a_w).norm() <= c.L11 * (w2 - w).norm() + slack
        assert (b_delta - a_delta).norm() <= c.L12 * (w2 - w).norm() + slack
        b_w, b_delta = problem.gradients(w, delta2)
        assert (b_w - a_w).norm() <= c.L12 * (delta2 - delta).norm() + slack
        assert (b_delta - a_delta).norm() <= c.L22 * (delta2 - delta).norm() + slack


def operator_and_offset(benchmark: zoo.Benchmark, w: torch.Tensor, delta: torch.Tensor) -> tuple[float, float, float]:
    """<F, z - z*>, ||F||^2 and ||z - z*||^2 at a point in the interior (f and g smooth or inactive)."""
    problem, solution = benchmark.problem, benchmark.solution
    assert solution is not None
    F_w, F_delta = problem.gradients(w, delta)
    F_delta = -F_delta
    if isinstance(problem.f, SquaredL2):
        F_w = F_w + problem.f.weight * (w - problem.f.centre)
    if isinstance(problem.g, list):
        rows = problem.delta_layout.form(delta, problem.all)
        F_delta = F_delta + torch.cat([g.weight * (row - g.centre) for g, row in zip(problem.g, rows, strict=True)])  # type: ignore[attr-defined]
    z = torch.cat((w - problem.w_layout.pack(solution.w), delta - problem.delta_layout.pack(solution.delta)))
    F = torch.cat((F_w, F_delta))
    return float(F @ z), float(F @ F), float(z @ z)


@pytest.mark.parametrize("name", ["weak-mvi", "weak-mvi-blocks", "weak-mvi-nonlinear", "ratio-game", "global-forsaken"])
def test_weak_mvi_holds_with_rho(name: str) -> None:
    benchmark = zoo.get(name)
    draw, rho = torch.Generator().manual_seed(1), benchmark.constants.rho
    assert rho is not None
    tightest = 0.0
    for _ in range(2000):
        inner, norm, _ = operator_and_offset(benchmark, *random_point(benchmark, draw, 1.8))
        assert inner >= -rho / 2 * norm * (1 + 1e-4) - 1e-12
        tightest = max(tightest, -2 * inner / norm)
    assert tightest > 0  # no MVI solution: the weak form is needed


@pytest.mark.parametrize("name", ["ridge", "quadratic"])
def test_strong_mvi_holds_with_mu(name: str) -> None:
    benchmark = zoo.get(name)
    draw, mu = torch.Generator().manual_seed(1), benchmark.constants.mu
    assert mu is not None
    for _ in range(300):
        inner, _, squared = operator_and_offset(benchmark, *random_point(benchmark, draw, 20.0))
        assert inner >= mu / 2 * squared - 1e-9


def test_rock_paper_scissors() -> None:
    assert pytest.approx(sqrt(3)) == zoo.get("matrix-game").constants.L12
    other = zoo.get("matrix-game", payoff=torch.eye(2))
    assert other.solution is None
    result = solve(other.problem, "ssi-hg", iterations=500)
    assert isinstance(result.w, torch.Tensor)
    torch.testing.assert_close(result.w, torch.full((2,), 0.5, dtype=torch.float64))


def test_admissibility_as_stated() -> None:
    """Inside Theorem 1: the family at n = 1, 4, 16, the ratio game, weak-mvi up to |b|/a near 0.031."""
    for name, options in [("weak-mvi-nonlinear", {"n": n}) for n in (1, 4, 16)] + [("ratio-game", {})]:
        c, n = zoo.get(name, **options).constants, options.get("n", 1)
        assert (c.rho or 0) < steps.largest_rho(L11=c.L11 or 0, L12=c.L12 or 0, n=n)[0]
    for b, inside in ((-0.030, True), (-0.033, False)):
        c = zoo.get("weak-mvi", b=b).constants
        assert ((c.rho or 0) < steps.largest_rho(L11=c.L11 or 0, L12=c.L12 or 0)[0]) is inside
    c = zoo.get("global-forsaken").constants
    assert (c.rho or 0) > steps.largest_rho(L11=c.L11 or 0, L12=c.L12 or 0)[0]


@pytest.mark.parametrize(
    ("name", "steps_given"),
    [(name, {}) for name in KNOWN if name not in ("forsaken", "global-forsaken", "weak-mvi-nonlinear")]
    + [("weak-mvi-nonlinear", {"iterations": 5000}), ("forsaken", {"sigma": 0.5, "tau": 0.5, "iterations": 300})]
    + [("global-forsaken", {"sigma": s, "tau": s, "iterations": 400}) for s in (0.2, 0.3, 0.38)],
)
@pytest.mark.filterwarnings("ignore::sihg.errors.StepSizeWarning")  # the Forsaken games are outside the theorem
@pytest.mark.filterwarnings("ignore::sihg.errors.EstimateWarning")
def test_ssi_hg_arrives(name: str, steps_given: dict[str, float]) -> None:
    benchmark = zoo.get(name)
    assert benchmark.solution is not None
    settings = {"iterations": 2000, "record_every": None, **steps_given}
    result = solve(benchmark.problem, "ssi-hg", **settings)  # type: ignore[arg-type]
    assert measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution) < 1e-3


def test_tv_denoising_of_an_image_lowers_noise() -> None:
    benchmark = zoo.get("tv-denoising", size=24, weight=0.15)
    clean = phantom(24, noise=0.0)
    result = solve(benchmark.problem, "ssi-hg", iterations=3000, tolerance=1e-3)
    assert isinstance(result.w, torch.Tensor)
    noisy = phantom(24)
    assert "tolerance reached" in result.stopped
    assert (result.w - clean).norm() < 0.7 * (noisy - clean).norm()


def test_same_options_same_problem() -> None:
    one, two = zoo.get("ridge", seed=3), zoo.get("ridge", seed=3)
    assert one.solution is not None
    assert two.solution is not None
    assert torch.equal(torch.as_tensor(one.solution.w), torch.as_tensor(two.solution.w))


def test_bad_names_and_options() -> None:
    with refused("unknown-problem", name="rigde"):
        zoo.get("rigde")
    with refused("unknown-problem-option", name="m"):
        zoo.get("ridge", m=3)
    with refused("samples-not-multiple"):
        zoo.get("ridge", samples=10, n=3)
