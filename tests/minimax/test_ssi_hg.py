"""SSI-HG against the paper's listing, DSI-HG and its own count of gradients."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.core.prox import L1, Box, SquaredL2
from sihg.minimax import LinearMap, Problem, Progress, solve
from tests.minimax.problems import nonlinear
from tests.minimax.twins import algorithm_1, algorithm_2

SIGMA, TAU = 0.08, 0.05


def path_of(problem: Problem, method: str, **settings: Any) -> list[tuple[Tensor, Tensor]]:
    path: list[tuple[Tensor, Tensor]] = []

    def keep(progress: Progress) -> None:
        assert isinstance(progress.w, Tensor)
        assert isinstance(progress.delta, Tensor)
        path.append((progress.w.clone(), progress.delta.clone()))

    solve(problem, method, callback=keep, record_every=None, **settings)
    return path


def assert_same(ours: list[tuple[Tensor, Tensor]], theirs: list[tuple[Tensor, Tensor]], tolerance: float) -> None:
    assert len(ours) == len(theirs)
    for (w, delta), (w_other, delta_other) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(w, w_other, rtol=0, atol=tolerance)
        torch.testing.assert_close(delta, delta_other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n", [2, 4, 16])
@pytest.mark.parametrize("theta", [1.0, 0.7])
def test_cheap_iteration_equals_the_listing(n: int, theta: float) -> None:
    plain = nonlinear(n)
    blocks = torch.randint(n, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    ours = path_of(plain.problem(), "ssi-hg", sigma=SIGMA, tau=TAU, theta=theta, iterations=60, blocks=blocks)
    assert_same(ours, algorithm_1(plain, SIGMA, TAU, theta, blocks), 1e-12)


@pytest.mark.parametrize("theta", [1.0, 0.7])
def test_one_block_equals_dsi_hg(theta: float) -> None:
    problem = nonlinear(1).problem()
    settings: dict[str, Any] = {"sigma": SIGMA, "tau": TAU, "theta": theta, "iterations": 500}
    assert_same(path_of(problem, "ssi-hg", **settings), path_of(problem, "dsi-hg", **settings), 1e-12)


def test_dsi_hg_equals_the_listing() -> None:
    plain = nonlinear(3)
    ours = path_of(plain.problem(), "dsi-hg", sigma=SIGMA, tau=TAU, theta=0.9, iterations=60)
    assert_same(ours, algorithm_2(plain, SIGMA, TAU, 0.9, 60), 1e-12)


def test_blocks_of_different_shapes_and_a_dict_of_weights() -> None:
    """The same problem with w split in a dict and delta in a list gives the same path."""
    plain = nonlinear(4, f=SquaredL2(0.1))
    blocks = [0, 3, 1, 1, 2, 0, 3, 2] * 5
    settings: dict[str, Any] = {"sigma": SIGMA, "tau": TAU, "theta": 1.0, "iterations": len(blocks), "blocks": blocks}
    whole = path_of(plain.problem(), "ssi-hg", **settings)[-1]
    shapes = [(3,), (1, 3), (3, 1), (3,)]

    def coupling(w: dict[str, Tensor], delta: list[Tensor], index: Tensor) -> Tensor:
        joined = torch.cat([w["a"].reshape(-1), w["b"]])
        return plain.coupling(joined, torch.stack([d.reshape(-1) for d in delta]), index)

    parts = Problem(
        coupling,
        {"a": plain.w0[:4].view(2, 2), "b": plain.w0[4:]},
        [row.reshape(shape) for row, shape in zip(plain.delta0, shapes, strict=True)],
        {"a": SquaredL2(0.1), "b": SquaredL2(0.1)},
        [plain.g] * 4,
    )
    result = solve(parts, "ssi-hg", **settings)
    assert isinstance(result.w, dict)
    assert [tuple(d.shape) for d in result.delta] == shapes
    torch.testing.assert_close(torch.cat([result.w["a"].reshape(-1), result.w["b"]]), whole[0], rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.stack([d.reshape(-1) for d in result.delta]), whole[1], rtol=0, atol=1e-14)


def linear_in_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
    return (torch.sin(delta) @ w) * (1 + index)


@pytest.mark.parametrize("theta", [1.0, 0.6])
def test_linear_in_w_changes_the_cost_not_the_path(theta: float) -> None:
    w0, delta0 = torch.ones(3, dtype=torch.float64), torch.full((5, 3), 0.2, dtype=torch.float64)
    settings: dict[str, Any] = {"sigma": 0.02, "tau": 0.03, "theta": theta, "iterations": 300}
    plain = Problem(linear_in_w, w0, delta0, L1(0.1), Box(-1, 1))
    declared = Problem(linear_in_w, w0, delta0, L1(0.1), Box(-1, 1), linear_in_w=True)
    assert_same(path_of(plain, "ssi-hg", **settings), path_of(declared, "ssi-hg", **settings), 1e-12)
    cheap = solve(declared, "ssi-hg", **settings, record_every=None).state.w_gradients
    assert cheap == 5 + 299 * 2


@pytest.mark.parametrize("n", [1, 2, 7])
def test_cost_is_n_plus_one_block_gradients(n: int) -> None:
    calls: list[int] = []
    plain = nonlinear(n)

    def counted(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        if w.requires_grad:
            calls.append(len(index))
        return plain.coupling(w, delta, index)

    problem = Problem(counted, plain.w0, plain.delta0, plain.f, plain.g, {"L11": 1, "L12": 1, "L22": 1})
    calls.clear()
    result = solve(problem, "ssi-hg", sigma=SIGMA, tau=TAU, iterations=11, record_every=1)
    per_iteration = n + 1 if n > 1 else 1
    assert result.state.w_gradients == n + 10 * per_iteration
    assert result.history["w_gradients"] == [0, *(n + k * per_iteration for k in range(11))]
    measured = 12 * n  # the twelve rows of the history, whose gradients are in both variables and not counted
    assert sum(calls) == result.state.w_gradients + measured


def test_bilinear_costs_one_product_each_way() -> None:
    problem = Problem.bilinear(torch.randn(6, 2, 4, dtype=torch.float64), f=SquaredL2(1.0), g=SquaredL2(1.0))
    state = solve(problem, "ssi-hg", sigma=0.1, tau=0.1, iterations=50, record_every=None).state
    assert (state.w_gradients, state.delta_gradients) == (6 + 49, 50)


def test_bilinear_equals_spdhg_and_the_general_path() -> None:
    torch.manual_seed(0)
    A = torch.randn(4, 3, 5, dtype=torch.float64)
    f, g = SquaredL2(0.3, torch.ones(5, dtype=torch.float64)), Box(-1, 0.5)
    w0, delta0 = torch.randn(5, dtype=torch.float64), 0.1 * torch.randn(4, 3, dtype=torch.float64)
    settings: dict[str, Any] = {"sigma": 0.05, "tau": 0.05, "theta": 0.95, "iterations": 400}
    special = Problem.bilinear(A, w0, delta0, f, g)
    general = Problem(lambda w, d, i: ((A[i] @ w) * d).sum(1), w0, delta0, f, g, {"L22": 0.0})
    reference = path_of(special, "ssi-hg", **settings)
    assert_same(reference, path_of(special, "spdhg", **settings), 1e-12)
    assert_same(reference, path_of(general, "ssi-hg", **settings), 1e-12)


def test_ragged_and_sparse_and_operator_blocks_agree() -> None:
    torch.manual_seed(1)
    matrices = [torch.randn(rows, 4, dtype=torch.float64) for rows in (2, 5, 3)]
    w0 = torch.randn(4, dtype=torch.float64)
    delta0 = [torch.randn(len(A), dtype=torch.float64) for A in matrices]
    operators = [LinearMap(partial(torch.mv, A), partial(torch.mv, A.T)) for A in matrices]
    kinds: tuple[Sequence[Tensor | LinearMap], ...] = (matrices, [A.to_sparse() for A in matrices], operators)
    ends = []
    for blocks in kinds:
        problem = Problem.bilinear(blocks, w0, delta0, SquaredL2(1.0), SquaredL2(2.0))
        ends.append(solve(problem, "ssi-hg", sigma=0.05, tau=0.05, iterations=100, record_every=None).state.inner)
    for other in ends[1:]:
        torch.testing.assert_close(other.w, ends[0].w, rtol=0, atol=1e-12)
        torch.testing.assert_close(other.delta, ends[0].delta, rtol=0, atol=1e-12)
