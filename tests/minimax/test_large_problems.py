"""The problems of the benchmark of 1,000 blocks, small: their solutions, their step sizes, and equal iterates."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.large_problems import EPS, FEATURES, WEIGHT, Case, make_case
from sihg.minimax import Progress, solve

BLOCKS, ROWS = 20, 50
names = pytest.mark.parametrize("name", ["ridge", "robust logistic"])


def case_of(name: str) -> Case:
    return make_case(name, BLOCKS, ROWS)


def dual(case: Case, u: Tensor) -> float:
    """The value of the dual at the maximiser d of the saddle function for u: a lower bound of every P."""
    data = case.data.flatten(0, 1).double()
    if case.small is None:
        d = data @ u - case.targets.flatten()
        pulled = data.T @ d / case.samples
        value = -(d.square().mean() / 2 + (d * case.targets.flatten()).mean())
        return float(value - pulled.square().sum() / (2 * WEIGHT))
    small = case.small.double() * case.samples
    p = torch.sigmoid(data @ (small @ u))
    pulled = (-small.T @ (data.T @ p) / case.samples).clamp(min=0)
    return float(-(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).mean() - pulled.square().sum() / (2 * WEIGHT))


@names
def test_the_solution_has_no_duality_gap(name: str) -> None:
    case = case_of(name)
    u = case.solution()
    assert case.objective(u.float()) == pytest.approx(dual(case, u), rel=1e-6)
    assert case.objective(torch.zeros(case.columns)) > 1.2 * case.objective(u.float())


def test_the_robust_loss_is_the_largest_over_the_perturbations() -> None:
    """P(u) is the mean loss at the worst corner of each ball, with w = u_+ - u_-."""
    case = case_of("robust logistic")
    u = case.solution()
    w = u[:FEATURES] - u[FEATURES:]
    assert float((u[:FEATURES] * u[FEATURES:]).abs().max()) == 0  # so |w|_1 is the sum of u
    rows = case.data.flatten(0, 1).double()[:, :FEATURES]  # -y x
    worst = rows + EPS * torch.sign(w)
    plain = torch.log1p(torch.exp(worst @ w)).mean() + WEIGHT / 2 * w.square().sum()
    assert case.objective(u.float()) == pytest.approx(float(plain), rel=1e-6)
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        inside = rows + EPS * (2 * torch.rand(rows.shape, generator=draw, dtype=rows.dtype) - 1)
        assert torch.all(inside @ w <= worst @ w)


@names
def test_steps_lie_inside_spdhgs_condition(name: str) -> None:
    case = case_of(name)
    sigma, tau, theta = case.step_sizes()
    matrices = case.data.double() if case.small is None else case.data.double() @ case.small.double()
    L = float(torch.linalg.matrix_norm(matrices, 2).max())
    assert L * (sigma * tau * BLOCKS) ** 0.5 == pytest.approx(0.99)
    convex_f, convex_g = case.convexity
    rates = [1 - 1 / (1 + 2 * convex_f * sigma), (1 - 1 / (1 + 2 * convex_g * tau)) / BLOCKS]
    assert rates == pytest.approx([1 - theta] * 2, rel=1e-6)


@names
@pytest.mark.parametrize("method", ["ssi-hg", "spdhg"])
def test_ours_reach_the_solution(name: str, method: str) -> None:
    case = case_of(name)
    sigma, tau, theta = case.step_sizes()
    result = solve(case.problem(), method, sigma=sigma, tau=tau, theta=theta, iterations=1000, record_every=None)
    least = case.objective(case.solution().float())
    assert case.objective(result.state.inner.w) <= (1 + 1e-5) * least


@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "solver"),
    [("ridge", "ODL, by hand"), ("ridge", "ODL, its own operators"), ("robust logistic", "ODL, by hand")],
)
def test_every_iterate_is_odls(name: str, solver: str) -> None:
    pytest.importorskip("odl", reason="odl is not installed: pip install 'sihg[peer]'")
    from benchmarks.large_saddles import Plan, build, drawn_blocks

    case, iterations = case_of(name), 200
    plan = Plan(name, BLOCKS, ROWS, *case.step_sizes())
    theirs: list[Tensor] = []

    def keep(_: int, w: Tensor) -> bool:
        theirs.append(w.clone())
        return False

    build(solver, plan)(iterations, keep)
    path: list[Tensor] = []

    def keep_ours(progress: Progress) -> None:
        path.append(progress.state.w.clone())

    settings: dict[str, Any] = {"sigma": plan.sigma, "tau": plan.tau, "theta": plan.theta, "iterations": iterations}
    settings |= {"blocks": drawn_blocks(BLOCKS)[:iterations], "record_every": None, "callback": keep_ours}
    solve(case.problem(), "ssi-hg", **settings)
    ours, expected = torch.stack(path), torch.stack(theirs)
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))
    assert float((expected[1:] - expected[:-1]).abs().amax(1).min()) > 0
