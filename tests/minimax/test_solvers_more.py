"""DS-GDA, alternating GDA and SPDHG's variants: iterations by hand; all methods over the zoo; draws with weights."""

from itertools import islice
from typing import Any, cast
from warnings import catch_warnings, simplefilter

import pytest
import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.core.prox import Box, SquaredL2
from sihg.errors import StepSizeWarning
from sihg.minimax import METHODS, Problem, Progress, measure, solve, zoo
from sihg.minimax._start import start_solve
from sihg.minimax._stepper import DRAWS_PER_CHUNK, draw_blocks
from sihg.minimax.solvers.block_norms import block_norms
from sihg.minimax.solvers.spdhg_balanced import SPDHGBalancedState
from tests.minimax.problems import nonlinear
from tests.minimax.twins import Plain
from tests.refused import refused

SIGMA, TAU = 0.1, 0.07
NEW = ["adaptive-eg+", "curvature-eg+", "inexact-ppm", "ogda+", "feg", "ds-gda", "altgda"]
SAMPLED = ["spdhg-importance", "spdhg-balanced"]


def ds_gda(p: Plain) -> tuple[Tensor, Tensor]:
    """r_w = pull / sigma and r_delta = pull / tau, with the gradients of the smoothed function written out."""
    w, delta = z, v = p.w0, p.delta0
    r_w, r_delta = 0.3 / SIGMA, 0.3 / TAU
    for _ in range(3):
        w = p.f.prox(w - SIGMA * (p.grad_w(w, delta) + r_w * (w - z)), SIGMA)
        delta = p.g.prox(delta + TAU * (p.grad_delta(w, delta) - r_delta * (delta - v)), TAU, batch=1)
        z, v = 0.8 * z + 0.2 * w, 0.8 * v + 0.2 * delta
    return w, delta


def altgda(p: Plain) -> tuple[Tensor, Tensor]:
    ws, deltas = [p.w0, p.w0], [p.delta0, p.delta0]
    for _ in range(3):
        step = -SIGMA * p.grad_w(ws[-1], deltas[-1]) - 0.4 * (ws[-1] - ws[-2])
        ws.append(p.f.prox(ws[-1] + step, SIGMA))
        step = TAU * p.grad_delta(ws[-1], deltas[-1]) + 0.2 * (deltas[-1] - deltas[-2])
        deltas.append(p.g.prox(deltas[-1] + step, TAU, batch=1))
    return ws[-1], deltas[-1]


@pytest.mark.parametrize(
    ("method", "twin", "options"),
    [
        ("ds-gda", ds_gda, {"pull": 0.3, "follow": 0.2}),
        ("altgda", altgda, {"momentum_w": -0.4, "momentum_delta": 0.2}),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_three_iterations_by_hand(method: str, twin: Any, options: dict[str, Any], n: int) -> None:
    plain = nonlinear(n)
    result = solve(plain.problem(), method, sigma=SIGMA, tau=TAU, iterations=3, record_every=None, **options)
    torch.testing.assert_close((result.w, result.delta), twin(plain), rtol=0, atol=1e-14)
    assert (result.state.w_gradients, result.state.delta_gradients) == (3 * n, 3 * n)


def test_negative_momentum_converges_where_alternating_gda_circles() -> None:
    """On w d without f and g (Gidel et al., 2019)."""
    problem = Problem.bilinear(torch.ones(1, 1, 1).double(), torch.ones(1).double(), torch.ones(1, 1).double())
    for momentum, converges in ((-0.5, True), (0.0, False)):
        settings: dict[str, Any] = {"momentum_w": momentum, "sigma": 0.95, "tau": 0.95}
        w = cast(Tensor, solve(problem, "altgda", iterations=300, record_every=None, **settings).w)
        assert (float(w.abs()) < 1e-12) is converges
        assert float(w.abs()) < 10


def bilinear(n: int = 4) -> Problem:
    """Blocks of unequal norms, with f and g at work."""
    draw = torch.Generator().manual_seed(1)
    blocks = [2.0**i * torch.randn(3, 5, generator=draw, dtype=torch.float64) for i in range(n)]
    w0 = torch.randn(5, generator=draw, dtype=torch.float64)
    return Problem.bilinear(blocks, w0, torch.zeros(n, 3).double(), SquaredL2(0.5, 1.0), Box(-0.4, 0.3))


def spdhg_by_hand(problem: Problem, blocks: list[int], *, importance: bool) -> tuple[Tensor, Tensor, list[float]]:
    """SPDHG with p_i and tau_i, or with p = 1/n and the ratio of rule (a); returns w, delta and the ratios."""
    maps = _matrices(problem)
    norms, ratio, tilt, ratios = block_norms(problem), 1.0, 0.6, []
    p = norms / norms.sum() if importance else torch.full((4,), 0.25).double()
    w, delta = problem.w0, problem.delta0.view(4, 3).clone()
    z = z_bar = torch.zeros(5).double()
    f, g = SquaredL2(0.5, 1.0), Box(-0.4, 0.3)
    for i in blocks:
        sigma, tau_i = SIGMA * ratio, TAU / ratio * float(0.25 / p[i])
        w_old, old = w, delta[i].clone()
        w = f.prox(w - sigma * z_bar, sigma)
        delta[i] = g.prox(old + tau_i * maps[i] @ w, tau_i)
        dz = maps[i].T @ (delta[i] - old)
        z, z_bar = z + dz, z + dz + dz / p[i]
        v = float(((w_old - w) / sigma + dz / p[i]).abs().sum())
        d = float(((old - delta[i]) / tau_i - maps[i] @ (w_old - w)).abs().sum() / p[i])
        scale = float(norms.norm())
        if not importance and (v > 1.4 * scale * d or v < scale * d / 1.4):
            ratio *= 1 / (1 - tilt) if v > scale * d else 1 - tilt
            tilt *= 0.9
        ratios.append(ratio)
    return w, delta, ratios


@pytest.mark.parametrize("method", SAMPLED)
def test_spdhg_variants_by_hand(method: str) -> None:
    problem, blocks = bilinear(), [3, 0, 3, 1, 2, 0, 3, 3, 1, 2]
    importance = method == "spdhg-importance"
    options: dict[str, Any] = {} if importance else {"tilt": 0.6, "decay": 0.9, "band": 1.4}
    ratios: list[float] = []

    def keep(progress: Progress) -> None:
        ratios.append(getattr(progress.state, "ratio", 1.0))

    settings: dict[str, Any] = {"sigma": SIGMA, "tau": TAU, "iterations": 10, "record_every": None}
    with catch_warnings():
        simplefilter("ignore", StepSizeWarning)
        result = solve(problem, method, **settings, blocks=blocks, callback=keep, **options)
    w, delta, wanted = spdhg_by_hand(problem, blocks, importance=importance)
    torch.testing.assert_close((result.w, result.delta), (w, delta), rtol=0, atol=1e-12)
    assert ratios == pytest.approx(wanted)
    assert importance or len(set(ratios)) > 3
    assert result.state.w_gradients == 4 + 10  # the start's A^T delta, then one block per iteration
    assert result.state.delta_gradients == 10 * (1 if importance else 2)


def test_block_norms_are_upper_estimates() -> None:
    problem = bilinear()
    exact = [float(torch.linalg.matrix_norm(block, 2)) for block in _matrices(problem)]
    ratios = block_norms(problem) / torch.tensor(exact, dtype=torch.float64)
    assert float(ratios.min()) >= 1
    assert float(ratios.max()) <= 1.05 + 1e-12
    zero = Problem.bilinear(torch.stack([torch.eye(3), torch.zeros(3, 3)]).double())
    assert block_norms(zero).tolist() == pytest.approx([1.05, 0.01 * 1.05 / 2])
    with refused("not-coupled"):
        solve(Problem.bilinear(torch.zeros(2, 3, 3)), "spdhg-importance")


def _matrices(problem: Problem) -> Tensor:
    eye = torch.eye(5).double()
    columns = [problem.coupling.gradient_delta(row, problem.delta0, problem.all) for row in eye]
    return torch.stack(columns, 1).view(4, 3, 5)


def test_balancing_beats_bad_steps() -> None:
    """Steps whose ratio is wrong by a factor of 10,000 in either direction, with the same product."""
    problem = zoo.get("tv-denoising", size=8).problem
    for wrong in (1e-2, 1e2):
        steps: dict[str, Any] = {"sigma": 0.35 * wrong, "tau": 0.35 / wrong, "iterations": 800, "record_every": 800}
        fixed = solve(problem, "spdhg", theta=1.0, **steps)
        balanced = solve(problem, "spdhg-balanced", **steps)
        ends = [run.history["saddle_norm_squared"][-1] for run in (balanced, fixed)]
        assert ends[0] < 1e-6 * ends[1]
        assert isinstance(balanced.state.inner, SPDHGBalancedState)
        assert (balanced.state.inner.ratio > 1) is (wrong < 1)


def draws(problem: Problem, method: str, first: int, count: int) -> list[int]:
    at = start_solve(problem, method, {}, 3, None)
    return list(islice(draw_blocks(at.seed, problem.n, first, at.method.weights(problem, at.inner)), count))


def test_uniform_draws_are_as_ever() -> None:
    chunks = [torch.randint(4, (DRAWS_PER_CHUNK,), generator=generator(3, "block", epoch=e)) for e in range(3)]
    wanted = torch.cat(chunks).tolist()
    assert draws(bilinear(), "spdhg", 0, 9000) == wanted[:9000]
    assert draws(bilinear(), "ssi-hg", 5000, 4000) == wanted[5000:9000]


def test_weighted_draws() -> None:
    problem = bilinear()
    drawn = draws(problem, "spdhg-importance", 0, 9000)
    assert draws(problem, "spdhg-importance", 4000, 5000) == drawn[4000:]
    assert draws(bilinear(), "spdhg-importance", 0, 9000) == drawn  # norms computed again
    norms = block_norms(problem)
    p = norms / norms.sum()
    counts = torch.bincount(torch.tensor(drawn), minlength=4)
    off = (counts - 9000 * p) / (9000 * p * (1 - p)).sqrt()
    assert float(off.abs().max()) < 4
    assert float(p.max() / p.min()) > 4


def test_importance_sampling_takes_longer_steps_and_gets_further() -> None:
    problem = bilinear()
    uniform = solve(problem, "spdhg", iterations=1000, record_every=1000)
    weighted = solve(problem, "spdhg-importance", iterations=1000, record_every=1000)
    assert weighted.steps.sigma > 1.5 * uniform.steps.sigma
    ends = [run.history["saddle_norm_squared"][-1] for run in (weighted, uniform)]
    assert ends[0] < 0.1 * ends[1]


@pytest.mark.parametrize("method", [*NEW, *SAMPLED])
def test_runs_on_the_zoo(method: str) -> None:
    """Every problem ends finite or says that it diverged; strongly monotone and bilinear ones are solved."""
    solved = {"tv-denoising", "matrix-game"}
    for name in zoo.names():
        benchmark = zoo.get(name)
        if METHODS[method].bilinear_only and not benchmark.problem.bilinear_in_both:
            continue
        with catch_warnings():
            simplefilter("ignore", StepSizeWarning)
            result = solve(benchmark.problem, method, iterations=60, record_every=60)
        norm = result.history["saddle_norm_squared"][-1]
        assert torch.as_tensor(result.w).isfinite().all()
        assert result.stopped == "60 iterations done" or result.stopped.startswith("diverged")
        assert norm < result.history["saddle_norm_squared"][0] or name not in solved


SLOW = {"ds-gda": 0.1, "feg": 0.2, "ogda+": 0.01, "spdhg-importance": 1e-3, "spdhg-balanced": 1e-4}


@pytest.mark.parametrize("method", [*NEW, *SAMPLED])
@pytest.mark.parametrize("name", ["quadratic", "ridge"])
def test_solves_strongly_monotone_problems(method: str, name: str) -> None:
    """From distances 4 and 10; FEG's rate is 1/k by design, and ridge is ill-conditioned (mu = 0.12 L12)."""
    benchmark = zoo.get(name)
    assert benchmark.solution is not None
    if METHODS[method].bilinear_only and not benchmark.problem.bilinear_in_both:
        return
    result = solve(benchmark.problem, method, iterations=1000, record_every=None)
    left = measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution)
    assert left < SLOW.get(method, 1e-5)


@pytest.mark.parametrize("method", [*NEW, *SAMPLED])
def test_adaptive_steps(method: str) -> None:
    """Methods that adapt by themselves keep their rule; the others take the common line search."""
    benchmark = zoo.get("ridge")
    assert benchmark.solution is not None
    result = solve(benchmark.problem, method, steps="adaptive", iterations=600, record_every=None)
    assert (result.state.adaptive is None) is (method in ("curvature-eg+", "spdhg-balanced"))
    left = measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution)
    assert left < {"feg": 0.3}.get(method, 1e-2)


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [("ds-gda", "pull", 1.0), ("ds-gda", "follow", 0.0), ("altgda", "momentum_w", -1.0), ("spdhg-balanced", "band", 1)],
)
def test_settings_out_of_range(method: str, setting: str, value: float) -> None:
    with refused("setting-value", setting=setting):
        solve(bilinear(), method, **{setting: value})  # type: ignore[arg-type]
