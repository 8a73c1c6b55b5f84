"""The zoo's answers and constants are what they say."""

from math import sqrt

import pytest
import torch

from sihg.core.prox import SquaredL2
from sihg.minimax import Problem, measure, solve, zoo
from sihg.minimax import step_sizes as steps
from sihg.minimax.zoo import phantom
from tests.refused import refused

KNOWN = [name for name in zoo.names() if zoo.get(name).solution is not None]
# As far from 0 as the domain goes; elsewhere 2.4.
SIZES = {"bilinearly-coupled": 5.6, "polar-game": 1.4, "wgan-covariance": 8.0}


def test_all_problems_but_one_have_solutions() -> None:
    assert len(zoo.names()) == 22
    assert set(zoo.names()) - set(KNOWN) == {"robust-network"}
    assert zoo.get("robust-network").best_value is not None
    assert zoo.get("robust-network", seed=1).best_value is None
    assert all(zoo.about(name).endswith(".") for name in zoo.names())


def test_naming_the_problems_builds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Problem, "__init__", refuse)
    assert [zoo.options(name) for name in zoo.names() if zoo.about(name)]
    with pytest.raises(AssertionError):
        zoo.get("weak-mvi")


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
    for k in range(100):
        w, delta = random_point(benchmark, draw, SIZES.get(name, 2.4))
        w2, delta2 = random_point(benchmark, draw, SIZES.get(name, 2.4))
        a_w, a_delta = problem.gradients(w, delta)
        b_w, b_delta = problem.gradients(w2, delta)
        slack = 1e-12
        assert (b_w - a_w).norm() <= c.L11 * (w2 - w).norm() + slack
        assert (b_delta - a_delta).norm() <= c.L12 * (w2 - w).norm() + slack
        b_w, b_delta = problem.gradients(w, delta2)
        assert (b_w - a_w).norm() <= c.L12 * (delta2 - delta).norm() + slack
        assert (b_delta - a_delta).norm() <= c.L22 * (delta2 - delta).norm() + slack
        i = k % problem.n
        old, new = problem.delta_layout.block(delta, i), problem.delta_layout.block(delta2, i)
        change = problem.gradient_w_change(w, i, new, old)[0]
        assert change.norm() <= (c.L12_block or c.L12) * (new - old).norm() + slack


@pytest.mark.parametrize(
    ("name", "options"),
    [("bilinearly-coupled", {}), ("sixth-order", {}), ("polar-game", {}), ("polar-game", {"a": 1 / 3, "side": 1.1})],
)
def test_constants_in_a_box_are_the_largest_derivatives(name: str, options: dict[str, float]) -> None:
    """On a grid that has the corners, by automatic differentiation: no larger, and within a tenth."""
    benchmark = zoo.get(name, **options)
    problem, c = benchmark.problem, benchmark.constants
    side = float(problem.f.upper)  # type: ignore[union-attr]
    largest = torch.zeros(2, 2, dtype=torch.float64)
    for w in torch.linspace(-side, side, 21, dtype=torch.float64):
        for d in torch.linspace(-side, side, 21, dtype=torch.float64):

            def field(z: torch.Tensor) -> torch.Tensor:
                return torch.cat(problem.gradients(z[:1], z[1:]))

            J = torch.autograd.functional.jacobian(field, torch.stack((w, d)))
            largest = largest.maximum(J.abs())
    assert c.L11 is not None
    assert c.L12 is not None
    assert c.L22 is not None
    for found, known in zip(largest.flatten().tolist(), (c.L11, c.L12, c.L12, c.L22), strict=True):
        assert 0.9 * known < found < known * (1 + 1e-12)


def operator_and_offset(benchmark: zoo.Benchmark, w: torch.Tensor, delta: torch.Tensor) -> tuple[float, float, float]:
    """<F, z - z*>, ||F||^2 and ||z - z*||^2 at a point of the domain, with 0 from the indicators' subdifferentials."""
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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("weak-mvi", "lower-bound", "weak-mvi-blocks", "weak-mvi-nonlinear", "ratio-game")),
        *((name, {}) for name in ("global-forsaken", "bilinearly-coupled", "polar-game")),
        ("polar-game", {"a": 1 / 3, "side": 1.1}),
        ("lower-bound", {"c": 0.3, "L": 5.0}),
    ],
)
def test_weak_mvi_holds_with_rho(name: str, options: dict[str, float]) -> None:
    benchmark = zoo.get(name, **options)
    draw, rho = torch.Generator().manual_seed(1), benchmark.constants.rho
    assert rho is not None
    tightest = 0.0
    for _ in range(1000):
        inner, norm, _ = operator_and_offset(benchmark, *random_point(benchmark, draw, SIZES.get(name, 1.8)))
        assert inner >= -rho / 2 * norm * (1 + 1e-4) - 1e-12
        tightest = max(tightest, -2 * inner / norm)
    assert tightest > 0  # no MVI solution: the weak form is needed
    if name in ("lower-bound", "bilinearly-coupled", "polar-game"):
        assert tightest > 0.9 * rho


@pytest.mark.parametrize("name", ["matrix-game", "wgan-mean", "fair-groups"])
def test_mvi_holds_where_rho_is_zero(name: str) -> None:
    benchmark = zoo.get(name)
    assert benchmark.constants.rho == 0
    draw = torch.Generator().manual_seed(1)
    for _ in range(300):
        assert operator_and_offset(benchmark, *random_point(benchmark, draw, 5.0))[0] >= -1e-12


@pytest.mark.parametrize("name", ["ridge", "quadratic", "robust-regression", "fair-classification"])
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
    for name in ("global-forsaken", "lower-bound", "bilinearly-coupled", "polar-game"):
        c = zoo.get(name).constants
        assert (c.rho or 0) > steps.largest_rho(L11=c.L11 or 0, L12=c.L12 or 0)[0]


ELSEWHERE = {"bilinearly-coupled", "polar-game", "lower-bound", "sixth-order", "wgan-covariance"}  # see test_zoo_cycles
ARRIVE = {  # settings where the defaults need more than 1,000 iterations, or do not arrive
    "weak-mvi": {"iterations": 2000},
    "weak-mvi-blocks": {"iterations": 2000},
    "weak-mvi-nonlinear": {"iterations": 5000},
    "dirac-gan": {"iterations": 2000},
    "ridge": {"iterations": 2000},
    "robust-logistic": {"iterations": 2000},
    "ratio-game": {"iterations": 2000},
    "forsaken": {"sigma": 0.5, "tau": 0.5, "iterations": 300},
    "fair-groups": {"sigma": 0.1, "tau": 0.4, "iterations": 800},
    "wgan-mean": {"sigma": 0.1, "tau": 0.8, "iterations": 800},
}


@pytest.mark.parametrize(
    ("name", "given"),
    [(name, ARRIVE.get(name, {})) for name in KNOWN if name not in {"global-forsaken", *ELSEWHERE}]
    + [("global-forsaken", {"sigma": s, "tau": s, "iterations": 400}) for s in (0.2, 0.3, 0.38)],
)
@pytest.mark.filterwarnings("ignore::sihg.errors.StepSizeWarning")  # some lie outside the theorem
@pytest.mark.filterwarnings("ignore::sihg.errors.EstimateWarning")
def test_ssi_hg_arrives(name: str, given: dict[str, float]) -> None:
    benchmark = zoo.get(name)
    assert benchmark.solution is not None
    result = solve(benchmark.problem, "ssi-hg", **{"iterations": 1000, "record_every": None, **given})  # type: ignore[arg-type]
    assert measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution) < 1e-3


def test_tv_denoising_of_an_image_lowers_noise() -> None:
    benchmark = zoo.get("tv-denoising", size=24, weight=0.15)
    clean = phantom(24, noise=0.0)
    result = solve(benchmark.problem, "ssi-hg", iterations=3000, tolerance=1e-3)
    assert isinstance(result.w, torch.Tensor)
    noisy = phantom(24)
    assert "tolerance reached" in result.stopped
    assert (result.w - clean).norm() < 0.7 * (noisy - clean).norm()


def test_both_forms_of_fair_classification_have_one_solution() -> None:
    one = zoo.get("fair-classification", groups=6, samples=90).solution
    blocks = zoo.get("fair-groups").solution
    assert one is not None
    assert blocks is not None
    torch.testing.assert_close(torch.as_tensor(blocks.w)[:-1], torch.as_tensor(one.w), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.as_tensor(blocks.delta).T, torch.as_tensor(one.delta), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "n"), [("robust-regression", 4), ("robust-regression", 1), ("fair-classification", 1)]
)
def test_the_worst_weights_are_larger_where_the_loss_is(name: str, n: int) -> None:
    """And the worst case is better than for the weights that are best for equal sample weights."""
    benchmark = zoo.get(name) if name == "fair-classification" else zoo.get(name, n=n)
    problem, solution = benchmark.problem, benchmark.solution
    assert solution is not None
    w, delta = torch.as_tensor(solution.w), torch.as_tensor(solution.delta)
    equal = problem.delta0.view_as(delta)  # where the divergence and its slope are zero
    losses = problem.gradient_delta(w, equal.reshape(-1), problem.all).view_as(delta)
    for weights, loss in zip(delta, losses, strict=True):
        order = loss.argsort()
        assert (weights[order].diff() >= -1e-12).all()
        assert weights.max() > 1.2 * equal.max()


def test_a_known_value_of_the_covariance_game() -> None:
    """At D = identity rows of the critic, phi is trace(S) - |V|^2, whatever V is."""
    problem = zoo.get("wgan-covariance", n=3).problem
    V, D = torch.randn(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    trace = float(torch.linspace(0.5, 1.5, 3, dtype=torch.float64).square().sum())
    phi = problem.coupling.phi(V.reshape(-1), D.reshape(-1), problem.all).sum()
    assert float(phi) == pytest.approx(trace - float(V.square().sum()))


def test_same_options_same_problem() -> None:
    one, two = zoo.get("ridge", seed=3), zoo.get("ridge", seed=3)
    assert one.solution is not None
    assert two.solution is not None
    assert torch.equal(torch.as_tensor(one.solution.w), torch.as_tensor(two.solution.w))


@pytest.mark.parametrize("name", [name for name in zoo.names() if "n" in zoo.options(name)])
@pytest.mark.parametrize("n", [1, 2])
def test_any_number_of_blocks(name: str, n: int) -> None:
    given = {"radius": 1.0} if name == "weak-mvi-nonlinear" else {}
    benchmark = zoo.get(name, n=n, **given)
    assert benchmark.problem.n == n
    if benchmark.solution is not None:
        assert measure.saddle_norm_squared(benchmark.problem, *benchmark.solution) < 1e-24
    for wrong in (0, 1.5, "two", True):
        with refused("problem-option-range", name="n", value=wrong):
            zoo.get(name, n=wrong)


@pytest.mark.parametrize(
    ("name", "option", "wrong"),
    [
        *(("lower-bound", "c", c) for c in (0, 1, float("nan"), "half")),
        *(("lower-bound", "L", 0), ("polar-game", "side", 0.5), ("polar-game", "a", -1)),
        *(("bilinearly-coupled", "coupling", "ten"), ("robust-regression", "penalty", 0)),
        *(("robust-regression", "features", 0), ("fair-classification", "weight", -1)),
        *(("fair-groups", "penalty", float("inf")), ("wgan-mean", "least", 1.5)),
        *(("wgan-mean", "clip", 0), ("wgan-covariance", "clip", -1), ("robust-network", "hidden", 0)),
        *(("robust-network", "eps", 0), ("quadratic", "dimension", 0), ("weak-mvi-blocks", "dimension", 0)),
    ],
)
def test_an_option_out_of_range_is_refused(name: str, option: str, wrong: object) -> None:
    with refused("problem-option-range", name=option):
        zoo.get(name, **{option: wrong})


def test_bad_names_and_options() -> None:
    with refused("unknown-problem", name="rigde"):
        zoo.get("rigde")
    with refused("unknown-problem-option", name="m"):
        zoo.get("ridge", m=3)
    for name in ("ridge", "robust-regression", "robust-network"):
        with refused("samples-not-multiple"):
            zoo.get(name, samples=10, n=3)
    with refused("reference-solution-not-found"):
        zoo.get("robust-regression", penalty=1e-14)
