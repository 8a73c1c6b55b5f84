"""Methods for weak MVIs: iterations by hand, and their theorems as inequalities."""

from collections.abc import Callable
from itertools import pairwise
from math import sqrt
from typing import Any, cast
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from torch import Tensor

from sihg.core.prox import Box
from sihg.errors import StepSizeWarning
from sihg.minimax import Problem, Progress, measure, solve, zoo
from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers import curvature_eg_plus, method_class
from sihg.minimax.solvers.halfspace import FreeState
from sihg.minimax.solvers.saddle_operator import Operator, Vector
from tests.minimax.problems import nonlinear
from tests.minimax.twins import Plain
from tests.refused import refused

SIGMA, TAU = 0.1, 0.07
RHO = 0.03
Twin = Callable[[Plain, int], list[tuple[Tensor, Tensor]]]


class Space:
    """One vector for both variables, as the papers write it: Gamma is a vector, F a function, J the proximal steps."""

    def __init__(self, p: Plain, sigma: float = SIGMA, tau: float = TAU) -> None:
        self.p, self.m, self.shape = p, p.w0.numel(), p.delta0.shape
        self.steps = sigma, tau
        self.gamma = torch.tensor([sigma] * self.m + [tau] * p.delta0.numel(), dtype=torch.float64)
        self.start = torch.cat((p.w0, p.delta0.reshape(-1)))

    def parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z[: self.m], z[self.m :].view(self.shape)

    def F(self, z: Tensor) -> Tensor:  # noqa: N802
        return torch.cat((self.p.grad_w(*self.parts(z)), -self.p.grad_delta(*self.parts(z)).reshape(-1)))

    def J(self, z: Tensor, times: float = 1.0) -> Tensor:  # noqa: N802
        w, delta = self.parts(z)
        sigma, tau = self.steps
        return torch.cat((self.p.f.prox(w, times * sigma), self.p.g.prox(delta, times * tau, batch=1).reshape(-1)))

    def dot(self, x: Tensor, y: Tensor) -> float:
        return float(x @ (y / self.gamma))


def projected(
    space: Space, z: Tensor, z_bar: Tensor, h: Tensor, relaxation: float = 1.0, rho: float = RHO
) -> tuple[Tensor, float]:
    v = h / space.gamma
    alpha = (space.dot(h, z - z_bar) - rho / 2 * float(v @ v)) / space.dot(h, h)
    return z - relaxation * alpha * h, alpha


def adaptive_eg_plus(p: Plain, iterations: int) -> list[tuple[Tensor, Tensor]]:
    space, path = Space(p), []
    z = space.start
    for _ in range(iterations):
        H = z - space.gamma * space.F(z)
        z_bar = space.J(H)
        H_bar = z_bar - space.gamma * space.F(z_bar)
        z, _ = projected(space, z, z_bar, H - H_bar, relaxation=1.3)
        path.append(space.parts(z_bar))
    return path


def inexact_ppm(p: Plain, iterations: int, steps: tuple[float, float], rho: float) -> tuple[list[Any], int]:
    """Return the answers and the number of inner steps."""
    space, path, inner_steps = Space(p, *steps), [], 0
    z = space.start
    for _ in range(iterations):
        inner, alpha = z, -1.0
        while not alpha >= 0.5 * (1 - rho / (2 * min(steps))):
            before, inner, inner_steps = inner, space.J(z - space.gamma * space.F(inner)), inner_steps + 1
            h = z - inner + space.gamma * (space.F(inner) - space.F(before))
            after, alpha = projected(space, z, inner, h, rho=rho)
        z = after
        path.append(space.parts(inner))
    return path, inner_steps


def ogda_plus(p: Plain, iterations: int) -> list[tuple[Tensor, Tensor]]:
    space, path = Space(p), []
    z, previous = space.start, space.F(space.start)
    for _ in range(iterations):
        now = space.F(z)
        z, previous = space.J(z - space.gamma * (1.4 * now - previous), times=0.4), now
        path.append(space.parts(z))
    return path


def feg(p: Plain, iterations: int) -> list[tuple[Tensor, Tensor]]:
    space, path = Space(p), []
    z, c = space.start, torch.zeros_like(space.start)
    for k in range(iterations):
        b, v = 1 / (k + 1), space.F(z) + c
        y = z + b * (space.start - z)
        half = y - (1 - b) * (space.gamma - RHO) * v
        point = y - space.gamma * space.F(half) + (1 - b) * RHO * v
        z = space.J(point)
        c = (point - z) / space.gamma
        path.append(space.parts(z))
    return path


@pytest.mark.parametrize(
    ("method", "twin", "options"),
    [
        ("adaptive-eg+", adaptive_eg_plus, {"relaxation": 1.3}),
        ("ogda+", ogda_plus, {"ratio": 0.4}),
        ("feg", feg, {}),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_three_iterations_by_hand(method: str, twin: Twin, options: dict[str, Any], n: int) -> None:
    plain = nonlinear(n)
    settings = {"sigma": SIGMA, "tau": TAU, "iterations": 3, **options}
    path = path_of(plain.problem(constants={"rho": RHO}), method, **settings)
    torch.testing.assert_close(path, twin(plain, 3), rtol=0, atol=1e-14)


def path_of(problem: Problem, method: str, **settings: Any) -> list[tuple[Tensor, Tensor]]:
    path: list[tuple[Tensor, Tensor]] = []

    def keep(progress: Progress) -> None:
        path.append((cast(Tensor, progress.w).clone(), cast(Tensor, progress.delta).clone()))

    solve(problem, method, record_every=None, callback=keep, **settings)
    return path


@pytest.mark.parametrize(("b", "several"), [(-0.1, False), (-1.2, True)])
def test_inexact_ppm_by_hand(b: float, several: bool) -> None:
    """It takes several inner steps where rho is large, and one where it is small, which is then adaptive-eg+."""
    known = zoo.get("weak-mvi", b=b).problem
    start = torch.tensor([[0.5]], dtype=torch.float64)
    plain = Plain(known.coupling.function, known.w0, start, Box(-2.0, 2.0), Box(-0.6, 3.0))  # type: ignore[union-attr]
    rho, steps = known.constants.rho or 0.0, (0.62, 0.6)
    problem, settings = plain.problem(constants={"rho": rho}), {"sigma": steps[0], "tau": steps[1], "iterations": 4}
    path = path_of(problem, "inexact-ppm", **settings)
    wanted, inner_steps = inexact_ppm(plain, 4, steps, rho)
    torch.testing.assert_close(path, wanted, rtol=0, atol=1e-14)
    assert (inner_steps > 4) is several
    last, one_step = path[-1][0], path_of(problem, "adaptive-eg+", **settings)[-1][0]
    assert torch.allclose(last, one_step, rtol=0, atol=1e-12) is not several


def test_curvature_eg_plus_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a curvature given far too small, so that the line search has to shorten the step."""
    monkeypatch.setattr(curvature_eg_plus, "_curvature", lambda unit, z, Fz, s: (0.05, z))  # noqa: ARG005
    plain = nonlinear(3)
    space, nu, shortened = Space(plain, 1.0, 0.5), 0.99, 0
    z = space.start
    for _ in range(2):
        gamma = 0.999 * nu / 0.05
        while True:
            space = Space(plain, gamma, 0.5 * gamma)
            z_bar = space.J(z - space.gamma * space.F(z))
            change = space.gamma * (space.F(z_bar) - space.F(z))
            if space.dot(change, change) <= nu**2 * space.dot(z_bar - z, z_bar - z):
                break
            gamma, shortened = gamma / 2, shortened + 1
        z, _ = projected(space, z, z_bar, z - z_bar + change)
    assert shortened > 2
    problem = plain.problem(constants={"rho": RHO})
    result = solve(problem, "curvature-eg+", sigma=1.0, tau=0.5, iterations=2, record_every=None)
    torch.testing.assert_close((result.w, result.delta), space.parts(z_bar), rtol=0, atol=1e-14)
    assert result.state.w_gradients == 3 * (2 * 2 + shortened)


def test_curvature_eg_plus_shortens_a_step_to_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature_eg_plus, "_curvature", lambda unit, z, Fz, s: (1e-300, z))  # noqa: ARG005
    game = Problem.bilinear(1000 * torch.ones(1, 1, 1).double(), torch.ones(1).double(), torch.ones(1, 1).double())
    result = solve(game, "curvature-eg+", sigma=1e6, tau=1e6, shorten=1e-10, iterations=2)  # 1e306 * 1000 at first
    assert result.stopped == "2 iterations done"
    assert float(torch.as_tensor(result.w).norm()) <= 1


def test_curvature_is_the_norm_of_the_second_derivative() -> None:
    plain = nonlinear(2)
    z = torch.cat((plain.w0, plain.delta0.reshape(-1)))
    H = torch.autograd.functional.hessian(lambda x: plain.phi(x[:5], x[5:].view(2, 3)), z)
    scale = torch.cat((torch.full((5,), 2.0), torch.full((6,), 3.0))).double().sqrt()
    wanted = float(torch.linalg.matrix_norm(scale[:, None] * H * scale, 2))
    op = Operator(Oracle(plain.problem(), 0.0), 2.0, 3.0)
    at = Vector(plain.w0, plain.delta0.reshape(-1))
    state = curvature_eg_plus.CurvatureState(at.w, at.delta)
    for _ in range(40):
        found, u = curvature_eg_plus._curvature(op, at, op.F(at), state)
        assert found <= wanted * (1 + 1e-6)
        state = curvature_eg_plus.CurvatureState(at.w, at.delta, u_w=u.w, u_delta=u.delta)
    assert found == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("size", [1.0, float("inf")])
def test_curvature_is_found_after_a_point_without_any(size: float) -> None:
    """phi = (w^+)^2 - (delta^+)^2 has none at (-1, -1); times infinity its gradient there is not a number."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return scale[0] * (w.clamp(min=0).square().sum() - delta.clamp(min=0).square().sum(1))

    flat, scale = torch.full((2,), -1.0, dtype=torch.float64), [1.0]
    op = Operator(Oracle(Problem(phi, flat, flat[None]), 0.0), 1.0, 1.0)
    at, scale[0] = Vector(flat, flat), size
    nothing, u = curvature_eg_plus._curvature(op, at, op.F(at), curvature_eg_plus.CurvatureState(at.w, at.delta))
    assert nothing == 0
    at, scale[0] = Vector(-flat, -flat), 1.0
    found, _ = curvature_eg_plus._curvature(
        op, at, op.F(at), curvature_eg_plus.CurvatureState(at.w, at.delta, u_w=u.w, u_delta=u.delta)
    )
    assert found == pytest.approx(2, rel=1e-6)


COSTS = {"adaptive-eg+": 2 * 40, "ogda+": 40, "feg": 2 * 40 - 1, "inexact-ppm": 2 * 40, "curvature-eg+": 3 * 40 + 4}


@pytest.mark.parametrize("method", COSTS)
def test_gradients_are_counted(method: str) -> None:
    """Two per iteration, or one; for curvature-eg+ a third for the power iteration, and four more at the start."""
    state = solve(zoo.get("quadratic").problem, method, iterations=40, record_every=7).state
    assert state.w_gradients == state.delta_gradients == 4 * COSTS[method]


def game(b: float) -> tuple[Problem, float, float]:
    """Return weak-mvi with a = 1 that knows only its rho, its L = sqrt(1 + b^2), and rho L = 2 |b| / L."""
    known = zoo.get("weak-mvi", b=b).problem
    rho, L = known.constants.rho, sqrt(1 + b**2)
    assert rho is not None
    delta0 = cast(Tensor, known.delta_form(known.delta0))
    return Problem(known.coupling.function, known.w0, delta0, constants={"rho": rho}), L, rho * L  # type: ignore[union-attr]


# The largest rho L that the theorems admit, and how far each method gets here on both sides of it.
REACH = [
    ("adaptive-eg+", 0.98, 1.0, (-0.35, 0.66), (-0.65, 1.09)),
    ("inexact-ppm", 0.98, 2.0, (-1.2, 1.54), None),
    ("ogda+", 0.618, 0.618, (-0.32, 0.61), (-0.8, 1.25)),
    ("eg+", 0.98, 0.49, (-0.1, 0.2), (-0.3, 0.57)),
]


@pytest.mark.parametrize(("method", "step", "admitted", "inside", "outside"), REACH)
def test_solves_weak_mvis_as_far_as_the_theorem_says(
    method: str, step: float, admitted: float, inside: tuple[float, float], outside: tuple[float, float] | None
) -> None:
    for b, rho_L in filter(None, (inside, outside)):
        problem, L, product = game(b)
        assert product == pytest.approx(rho_L, abs=0.01)
        at_most = {"sigma": step / L, "tau": step / L}
        covered = b == inside[0]
        assert not covered or product < admitted
        result = solve(problem, method, **at_most, iterations=600, record_every=None)  # type: ignore[arg-type]
        distance = measure.distance(
            problem, result.w, result.delta, torch.zeros(1).double(), torch.zeros(1, 1).double()
        )
        assert (distance < 1e-6) is covered
    gda = solve(game(inside[0])[0], "gda", sigma=0.1, tau=0.1, iterations=600, record_every=None)
    assert float(cast(Tensor, gda.w).abs()) > 1e3 or gda.stopped.startswith("diverged")


@pytest.mark.parametrize("name", ["forsaken", "global-forsaken"])
@pytest.mark.parametrize("method", ["adaptive-eg+", "curvature-eg+", "inexact-ppm", "ogda+", "ds-gda"])
def test_leaves_the_limit_cycle_where_gda_stays(method: str, name: str) -> None:
    """GlobalForsaken has rho L = 0.2395 * 2.77 = 0.66; no rho is known of Forsaken."""
    benchmark = zoo.get(name)
    assert benchmark.solution is not None
    with catch_warnings():
        simplefilter("ignore", StepSizeWarning)  # ogda+ is not proved to converge here
        result = solve(benchmark.problem, method, iterations=2500, tolerance=1e-4, record_every=10)
    assert measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution) < 1e-3
    gda = solve(benchmark.problem, "gda", iterations=200, record_every=None)
    assert measure.distance(benchmark.problem, gda.w, gda.delta, *benchmark.solution) > 1


@pytest.mark.parametrize("method", ["adaptive-eg+", "inexact-ppm"])
def test_every_step_approaches_the_solution(method: str) -> None:
    """||z^{k+1} - z*||^2 <= ||z^k - z*||^2 - ||z^{k+1} - z^k||^2: a projection on a halfspace that holds z*."""
    problem, L, _ = game(-0.4 if method == "adaptive-eg+" else -1.5)
    iterates: list[Tensor] = []

    def keep(progress: Progress) -> None:
        free = cast(FreeState, progress.state).free
        iterates.append(torch.cat((free.w, free.delta)))

    solve(problem, method, sigma=0.98 / L, tau=0.98 / L, iterations=60, record_every=None, callback=keep)
    left = [float(after @ after + (after - z) @ (after - z)) for z, after in pairwise(iterates)]
    right = [float(z @ z) for z in iterates]
    assert all(a <= b * (1 + 1e-12) for a, b in zip(left, right, strict=False))
    assert right[-1] < 0.5 * right[0]


def test_ogda_plus_is_within_the_bound_of_boehms_theorem() -> None:
    """min_{i<k} ||F(z_i)||^2 <= ||z_0 + a F(z_0) - z*||^2 / (k a ratio (a - rho))."""
    problem, L, _ = game(-0.2)
    a, ratio, rho = 0.618 / L, 5**0.5 - 2, problem.constants.rho or 0.0
    result = solve(problem, "ogda+", sigma=a, tau=a, iterations=60, record_every=1)
    z0 = torch.cat((problem.w0, problem.delta0))
    F0 = torch.tensor([problem.delta0 - 0.2 * problem.w0, -problem.w0 - 0.2 * problem.delta0]).double()
    distance = float((z0 + a * F0).square().sum())
    squares = torch.tensor(result.history["saddle_norm_squared"][:-1])
    bounds = distance / (torch.arange(1, 61) * a * ratio * (a - rho))
    assert bool((squares.cummin(0).values <= bounds).all())


def test_feg_is_within_the_bound_of_lee_and_kims_theorem() -> None:
    """||F(z^k)||^2 <= 4 ||z^0 - z*||^2 / ((1/L - rho)^2 k^2), which extragradient does not reach at first."""
    problem, L, _ = game(-0.2)
    rho = problem.constants.rho or 0.0
    result = solve(problem, "feg", sigma=1 / L, tau=1 / L, iterations=300, record_every=1)
    k = torch.arange(1, 301).double()
    bounds = 4 * float(problem.w0.square().sum() + problem.delta0.square().sum()) / ((1 / L - rho) ** 2 * k**2)
    squares = torch.tensor(result.history["saddle_norm_squared"][1:])
    assert bool((squares <= bounds).all())
    assert float((squares / bounds)[-1]) > 0.01  # it is no faster than that


def test_steps_outside_the_theorem_are_named() -> None:
    with pytest.warns(match="AdaptiveEGPlus asks a step <= 1/L, .* admits rho < 0.3; the problem has 0.9756"):
        solve(zoo.get("weak-mvi", b=-0.8).problem, "adaptive-eg+", sigma=0.3, tau=0.4, iterations=1)


def test_the_largest_step_of_ogda_plus_follows_its_ratio() -> None:
    problem, L = zoo.get("weak-mvi", b=-0.1).problem, 1.1  # 0.1 + 1, as the condition has it
    with catch_warnings():
        simplefilter("error", StepSizeWarning)
        solve(problem, "ogda+", ratio=0.01, sigma=0.95 / L, tau=0.95 / L, iterations=1)
    with pytest.warns(StepSizeWarning, match="OGDAPlus asks a step <= 0.0526/L, here 0.6174/L"):
        solve(problem, "ogda+", ratio=0.9, iterations=1)


@pytest.mark.parametrize("method", ["feg", "curvature-eg+"])
def test_an_unknown_rho_is_said(method: str) -> None:
    assert "rho not known" in solve(nonlinear(2).problem(), method, iterations=1).steps.source
    assert "rho not known" not in solve(zoo.get("weak-mvi").problem, method, iterations=1).steps.source


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [
        ("adaptive-eg+", "relaxation", 2.0),
        ("curvature-eg+", "nu", 1.0),
        ("curvature-eg+", "shorten", float("nan")),
        ("inexact-ppm", "accept", 0.0),
        ("inexact-ppm", "inner_limit", 0),
        ("ogda+", "ratio", 1.5),
        ("ogda+", "ratio", "a"),
        ("eg+", "ratio", float("nan")),
        ("eg+", "ratio", -3),
        ("mgda", "ascent_steps", 2.5),
        ("mgda", "ascent_steps", 0),
    ],
)
def test_settings_out_of_range(method: str, setting: str, value: float | str) -> None:
    with refused("setting-value", setting=setting):
        solve(zoo.get("weak-mvi").problem, method, **{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "setting", "value"), [("ogda+", "ratio", np.float32(0.125)), ("mgda", "ascent_steps", np.int64(2))]
)
def test_settings_may_be_numpy_numbers(method: str, setting: str, value: float) -> None:
    result = solve(zoo.get("weak-mvi").problem, method, iterations=1, **{setting: value})  # type: ignore[arg-type]
    assert result.stopped == "1 iterations done"


@pytest.mark.parametrize("method", ["adaptive-eg+", "curvature-eg+", "inexact-ppm"])
def test_answers_are_feasible(method: str) -> None:
    problem = nonlinear(3, g=Box(-0.1, 0.1)).problem()
    delta = solve(problem, method, iterations=37, record_every=None).delta
    assert float(torch.as_tensor(delta).abs().max()) <= 0.1


@pytest.mark.parametrize("method", ["adaptive-eg+", "curvature-eg+", "inexact-ppm", "ogda+", "feg"])
def test_a_solution_is_left_alone(method: str) -> None:
    benchmark = zoo.get("weak-mvi")
    phi = benchmark.problem.coupling.function  # type: ignore[union-attr]
    zeros = torch.zeros(1).double()
    problem = Problem(phi, zeros, zeros[None], constants=benchmark.constants)
    result = solve(problem, method, iterations=5, record_every=None)
    assert float(cast(Tensor, result.w)) == 0
    assert method_class(method).state is type(result.state.inner)
