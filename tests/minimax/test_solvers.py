"""The reference methods: two iterations by hand, and where each converges."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.core.prox import Box
from sihg.minimax import METHODS, measure, solve, zoo
from tests.minimax.problems import nonlinear
from tests.minimax.twins import Plain
from tests.refused import refused

SIGMA, TAU = 0.1, 0.07
Pair = tuple[Tensor, Tensor]


def prox(p: Plain, w: Tensor, delta: Tensor) -> Pair:
    return p.f.prox(w, SIGMA), p.g.prox(delta, TAU, batch=1)


def forward(at: Pair, gradients: Pair) -> Pair:
    return at[0] - SIGMA * gradients[0], at[1] + TAU * gradients[1]


def gradients(p: Plain, at: Pair) -> Pair:
    return p.grad_w(*at), p.grad_delta(*at)


def gda(p: Plain, z: Pair) -> Pair:
    for _ in range(2):
        z = prox(p, *forward(z, gradients(p, z)))
    return z


def mgda(p: Plain, z: Pair) -> Pair:
    w, delta = z
    for _ in range(2):
        for _ in range(3):
            delta = p.g.prox(delta + TAU * p.grad_delta(w, delta), TAU, batch=1)
        w = p.f.prox(w - SIGMA * p.grad_w(w, delta), SIGMA)
    return w, delta


def extragradient(p: Plain, z: Pair) -> Pair:
    for _ in range(2):
        ahead = prox(p, *forward(z, gradients(p, z)))
        z = prox(p, *forward(z, gradients(p, ahead)))
    return z


def eg_plus(p: Plain, z: Pair) -> Pair:
    ahead = z
    for _ in range(2):
        h = forward(z, gradients(p, z))
        ahead = prox(p, *h)
        h_ahead = forward(ahead, gradients(p, ahead))
        z = z[0] - 0.5 * (h[0] - h_ahead[0]), z[1] - 0.5 * (h[1] - h_ahead[1])
    return ahead


def optimistic(p: Plain, z: Pair) -> Pair:
    first = gradients(p, z)
    z = prox(p, *forward(z, first))
    second = gradients(p, z)
    return prox(p, *forward(z, (2 * second[0] - first[0], 2 * second[1] - first[1])))


@pytest.mark.parametrize(
    ("method", "by_hand", "options"),
    [
        ("gda", gda, {}),
        ("mgda", mgda, {"ascent_steps": 3}),
        ("extragradient", extragradient, {}),
        ("eg+", eg_plus, {}),
        ("optimistic", optimistic, {}),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_two_iterations_by_hand(method: str, by_hand: Any, options: dict[str, Any], n: int) -> None:
    plain = nonlinear(n)
    result = solve(plain.problem(), method, sigma=SIGMA, tau=TAU, iterations=2, record_every=None, **options)
    w, delta = by_hand(plain, (plain.w0, plain.delta0))
    torch.testing.assert_close(result.w, w, rtol=0, atol=1e-14)
    torch.testing.assert_close(result.delta, delta, rtol=0, atol=1e-14)


COSTS = {"gda": (1, 1), "mgda": (1, 10), "extragradient": (2, 2), "eg+": (2, 2), "optimistic": (1, 1)}


@pytest.mark.parametrize("method", COSTS)
def test_gradients_are_counted(method: str) -> None:
    state = solve(nonlinear(3).problem(), method, sigma=SIGMA, tau=TAU, iterations=5, record_every=1).state
    assert (state.w_gradients, state.delta_gradients) == tuple(3 * 5 * cost for cost in COSTS[method])


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("gda", "mgda", "feg", "ds-gda")])
@pytest.mark.parametrize("name", ["matrix-game", "ridge"])
def test_arrives_on_monotone_problems(method: str, name: str) -> None:
    benchmark = zoo.get(name)
    assert benchmark.solution is not None
    result = solve(benchmark.problem, method, iterations=2500, record_every=None)
    assert measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution) < 1e-5


@pytest.mark.parametrize(
    ("method", "arrives"), [("eg+", True), ("extragradient", True), ("optimistic", True), ("gda", False)]
)
def test_weak_mvi_separates_gda(method: str, arrives: bool) -> None:
    benchmark = zoo.get("weak-mvi")
    assert benchmark.solution is not None
    result = solve(benchmark.problem, method, iterations=1500, record_every=None)
    distance = measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution)
    assert (distance < 1e-3) is arrives


def test_eg_plus_answer_is_feasible() -> None:
    problem = nonlinear(3, g=Box(-0.1, 0.1)).problem()
    delta = solve(problem, "eg+", iterations=37, record_every=None).delta
    assert float(torch.as_tensor(delta).abs().max()) <= 0.1


def test_spdhg_needs_a_bilinear_problem() -> None:
    with refused("method-bilinear-only", method="spdhg"):
        solve(nonlinear(2).problem(), "spdhg")
