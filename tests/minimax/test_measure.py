"""The saddle norm, the estimates and the bound."""

from math import inf

import pytest
import torch

from sihg.core.prox import L1, Box
from sihg.minimax import Problem, measure, zoo
from tests.minimax.problems import nonlinear


def test_saddle_norm_by_hand() -> None:
    """phi = w d, f = |w|, g the box [-1, 1]: inside, on a face and outside."""
    problem = Problem(lambda w, d, _: (w * d).sum(1), torch.tensor([2.0]), torch.tensor([[0.5]]), L1(1.0), Box(-1, 1))

    def norm_squared(w: float, delta: float) -> float:
        return measure.saddle_norm_squared(problem, torch.tensor([w]), torch.tensor([[delta]]))

    assert norm_squared(2.0, 0.5) == pytest.approx(1.5**2 + 2.0**2)  # f' + delta = 1.5; nothing cancels w inside
    assert norm_squared(2.0, 1.0) == pytest.approx(2.0**2)  # the face holds delta
    assert norm_squared(-2.0, 1.0) == pytest.approx(0.0 + 2.0**2)  # delta wants to leave the face: w = -2 remains
    assert norm_squared(0.0, 0.5) == 0.0  # |w| has slopes [-1, 1] at 0
    assert norm_squared(2.0, 1.5) == inf


def test_saddle_norm_of_dicts_and_lists() -> None:
    plain = nonlinear(3)
    whole = measure.saddle_norm_squared(plain.problem(), plain.w0, plain.delta0.clamp(-0.5, 0.4))

    def coupling(w: dict[str, torch.Tensor], delta: list[torch.Tensor], index: torch.Tensor) -> torch.Tensor:
        return plain.coupling(torch.cat([w["a"], w["b"]]), torch.stack(delta), index)

    w0 = {"a": plain.w0[:2], "b": plain.w0[2:]}
    parts = Problem(coupling, w0, list(plain.delta0), {"a": plain.f, "b": plain.f}, [plain.g] * 3)
    split = measure.saddle_norm_squared(parts, w0, list(plain.delta0.clamp(-0.5, 0.4)))
    assert split == pytest.approx(whole, rel=1e-12)


def test_objective_of_dicts_and_lists() -> None:
    """f and g of each part are summed; outside a domain the value is infinite."""

    def coupling(w: dict[str, torch.Tensor], delta: list[torch.Tensor], index: torch.Tensor) -> torch.Tensor:
        return torch.stack([w["a"].sum() * d.sum() + w["b"].sum() for d in delta]) * (1 + 0 * index)

    w, delta = {"a": torch.tensor([2.0]), "b": torch.tensor([3.0])}, [torch.tensor([1.0]), torch.tensor([0.5, -1.0])]
    problem = Problem(coupling, w, delta, {"a": L1(1.0), "b": L1(2.0)}, [L1(4.0), Box(-1, 1)])
    assert measure.objective(problem, w, delta) == pytest.approx((2 * 1 + 3) + (2 * -0.5 + 3) + (2 + 6) - 4)
    single = Problem(coupling, w, delta, L1(1.0), Box(-1, 1))
    assert measure.objective(single, w, delta) == pytest.approx(5 + 2 + (2 + 3))
    assert measure.objective(single, w, [torch.tensor([2.0]), delta[1]]) == -inf
    stacked = zoo.get("ridge", n=2, samples=20).problem
    point = torch.ones(10, dtype=torch.float64), torch.ones(2, 10, dtype=torch.float64)
    halves = [g.value(torch.ones(10, dtype=torch.float64)) for g in stacked.g]  # type: ignore[union-attr]
    phi = float(stacked.coupling.phi(point[0], point[1].reshape(-1), stacked.all).sum())
    assert measure.objective(stacked, *point) == pytest.approx(phi + 0.05 * 10 - float(sum(halves)))


@pytest.mark.parametrize("name", ["weak-mvi", "weak-mvi-blocks", "quadratic", "ridge", "matrix-game"])
def test_estimates_are_lower_bounds_and_sharp_for_quadratics(name: str) -> None:
    benchmark = zoo.get(name)
    seen, known = measure.estimate_constants(benchmark.problem, iterations=200), benchmark.constants
    assert "lower bounds" in seen.source
    for key in ("L11", "L12", "L22"):
        estimate, true = getattr(seen, key), getattr(known, key)
        assert estimate <= true * (1 + 1e-5) + 1e-9
        assert estimate >= 0.97 * true
    if known.L12_block is not None:
        assert 0.9 * known.L12_block <= (seen.L12_block or 0) <= known.L12_block * (1 + 1e-5)


def test_explicit_bound_by_hand() -> None:
    benchmark = zoo.get("weak-mvi-nonlinear", n=4)
    problem, solution, c = benchmark.problem, benchmark.solution, benchmark.constants
    assert solution is not None
    sigma, tau, n = 0.15, 0.03, 4
    L11, L12, rho = c.L11 or 0, c.L12 or 0, c.rho or 0
    kappa = max(L12 * (sigma * tau * n) ** 0.5, L11 * sigma)
    c_w = 1 - 3 * kappa - 3 * rho * (1 / sigma + 4 * L11**2 * sigma)
    c_d = 1 - kappa - rho * (1 / tau + 12 * n * L12**2 * tau)
    assert min(c_w, c_d) > 0
    D = float(problem.w0.square().sum()) / (2 * sigma) + n * float(problem.delta0.square().sum()) / (2 * tau)
    factor = max(3 * (1 / sigma + 4 * L11**2 * sigma) / c_w, (1 / tau + 12 * n * L12**2 * tau) / c_d)
    assert measure.explicit_bound(problem, *solution, sigma, tau) == pytest.approx(2 * D * factor)
    assert measure.explicit_bound(problem, *solution, 5.0, 5.0) == inf
    assert measure.explicit_bound(nonlinear(2).problem(), nonlinear(2).w0, nonlinear(2).delta0, 0.1, 0.1) == inf


def test_explicit_bound_weighs_delta_by_the_number_of_blocks() -> None:
    """sigma = tau = 0.1, L11 = 0, L12 = 1: kappa = 0.1 sqrt(n), and 3 (1/sigma) / (1 - 3 kappa) is larger."""
    constants = {"L11": 0.0, "L12": 1.0, "rho": 0.0}
    starts = torch.zeros(1), torch.zeros(2, 1)
    problem = Problem(lambda w, d, _: (d * w).sum(1), *starts, constants=constants)
    w_star, delta_star = torch.tensor([2.0]), torch.tensor([[1.0], [2.0]])  # 4 / (2 sigma) = 20, 5 / (2 tau) = 25
    bound = measure.explicit_bound(problem, w_star, delta_star, 0.1, 0.1)
    assert bound == pytest.approx(2 * 30 / (1 - 0.3 * 2**0.5) * (20 + 2 * 25), rel=1e-6)
    one_block = measure.explicit_bound(problem, w_star, delta_star, 0.1, 0.1, one_block=True)
    assert one_block == pytest.approx(2 * 30 / 0.7 * (20 + 25), rel=1e-6)
