"""Step sizes chosen, warned about and refused; settings refused."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sihg.core.prox import Box, SquaredL2
from sihg.errors import EstimateWarning, StepSizeWarning
from sihg.minimax import METHODS, Constants, Problem, _start, measure, solve, zoo
from sihg.minimax import step_sizes as steps
from tests.minimax.problems import nonlinear
from tests.refused import refused

STEPS: dict[str, Any] = {"sigma": 0.08, "tau": 0.05}


def test_steps_are_chosen_and_their_source_is_named() -> None:
    by_theorem = solve(zoo.get("weak-mvi").problem, "ssi-hg", iterations=1)
    assert by_theorem.steps.source.startswith("Theorem 1")
    assert by_theorem.steps.source.endswith("with the problem's constants")
    by_mu = solve(zoo.get("quadratic").problem, "ssi-hg", iterations=1)
    assert by_mu.steps.source.startswith("Theorem 2")
    assert by_mu.steps.theta < 1
    estimated = solve(nonlinear(2).problem(), "ssi-hg", iterations=1)
    assert "estimates at the start (local lower bounds)" in estimated.steps.source
    half = solve(nonlinear(2).problem(), "ssi-hg", iterations=1, tau=0.01)
    assert half.steps.tau == 0.01
    assert half.steps.source.endswith("tau given")
    assert solve(nonlinear(2).problem(), "ssi-hg", iterations=1, **STEPS).steps.source == "given"


def test_steps_outside_the_theorem_give_one_warning() -> None:
    problem = zoo.get("weak-mvi").problem
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = solve(problem, "ssi-hg", sigma=2.0, tau=0.9, iterations=5)
    (warning,) = caught
    assert warning.category is StepSizeWarning
    assert warning.filename == __file__
    assert "kappa = 1.34" in str(warning.message)
    assert result.state.iteration == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(problem, "ssi-hg", iterations=5)


@pytest.mark.parametrize("L22", [None, 8.0])
def test_implicit_step_that_is_not_well_posed_is_refused(L22: float | None) -> None:
    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (w * delta + 4 * delta**2).sum(1)

    problem = Problem(phi, torch.ones(1), torch.ones(2, 1), g=Box(-1, 1), constants={} if L22 is None else {"L22": L22})
    with refused("implicit-step-tau", tau=0.5):
        solve(problem, "ssi-hg", sigma=0.1, tau=0.5)


def test_unsolved_implicit_steps_give_a_warning() -> None:
    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (w * delta).sum(1) + 2000 * torch.cos(delta).sum(1)  # curved much more than at the start

    start = torch.full((1, 1), torch.pi / 2)
    with pytest.warns(EstimateWarning, match=r"implicit steps ended before their tolerance .*: lower tau"):
        solve(Problem(phi, torch.ones(1), start), "dsi-hg", sigma=0.1, tau=0.1, iterations=5, record_every=None)


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"iterations": -1}, "iterations-range", {"iterations": -1}),
        ({"iterations": 2.5}, "iterations-range", {"iterations": 2.5}),
        ({"tolerance": -1.0}, "tolerance-range", {"tolerance": -1.0}),
        ({"record_every": 0}, "record-every-range", {"record_every": 0}),
        ({"tolerance": 0.1, "record_every": None}, "tolerance-unchecked", {}),
        ({"blocks": [0], "iterations": 2}, "blocks-count", {"count": 1}),
        ({"blocks": [0, 9], "iterations": 2}, "blocks-range", {"block": 9}),
        ({"sigma": -0.1}, "step-size-range", {"name": "sigma", "value": -0.1}),
        ({"tau": float("nan")}, "step-size-range", {"name": "tau"}),
        ({"sigma": "x"}, "step-size-range", {"name": "sigma", "value": "x"}),
        ({"steps": {"sigma": "x", "tau": 1.0}}, "step-size-range", {"name": "sigma", "value": "x"}),
        ({"steps": {"theta": None}}, "theta-range", {"theta": None}),
        ({"theta": 1.5}, "theta-range", {"theta": 1.5}),
        ({"ascent_steps": 3}, "unknown-method-setting", {"name": "ascent_steps"}),
    ],
)
def test_bad_settings(settings: dict[str, Any], code: str, values: dict[str, object]) -> None:
    with refused(code, **values):
        solve(nonlinear(2).problem(), "ssi-hg", **{**STEPS, **settings})


def test_theta_of_a_method_without_theta() -> None:
    with refused("unknown-method-setting", name="theta"):
        solve(nonlinear(2).problem(), "gda", theta=0.5, **STEPS)


@pytest.mark.parametrize("method", ["curvature-eg+", "spdhg-importance"])
def test_no_constants_are_estimated_for_methods_without_need(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.bilinear(torch.arange(24.0).view(2, 3, 4).sin(), torch.ones(4), torch.ones(2, 3))
    assert not problem.constants.lipschitz_known
    estimated: list[Problem] = []

    def estimate(p: Problem) -> Constants:
        estimated.append(p)
        return Constants(L11=1, L12=1, L22=1)

    monkeypatch.setattr(_start, "estimate_constants", estimate)
    solve(problem, method, iterations=2)
    assert not estimated
    solve(problem, "extragradient", iterations=2)
    assert estimated == [problem]


def test_unknown_method() -> None:
    with refused("unknown-method", name="sgd"):
        solve(nonlinear(2).problem(), "sgd")


def test_theta_follows_the_steps_where_mu_is_known() -> None:
    problem = zoo.get("quadratic").problem
    for given in ({"sigma": 0.01}, {"sigma": 0.01, "tau": 0.02}):
        result = solve(problem, "ssi-hg", iterations=1, **given)  # type: ignore[arg-type]
        assert result.steps.theta == steps.contraction(result.steps.sigma, result.steps.tau, mu=0.4, n=4)
    assert solve(problem, "ssi-hg", iterations=1, sigma=0.01, tau=0.02, theta=1.0).steps.theta == 1


def test_known_lipschitz_constants_without_l22() -> None:
    problem = nonlinear(2).problem(constants={"L11": 1.0, "L12": 1.0})
    assert solve(problem, "ssi-hg", **STEPS, iterations=2).stopped == "2 iterations done"


def test_closed_form_does_not_excuse_tau() -> None:
    with refused("implicit-step-tau", tau=60):
        solve(zoo.get("weak-mvi").problem, "ssi-hg", sigma=0.1, tau=60)


def test_numpy_numbers_are_accepted(tmp_path: Path) -> None:
    problem = nonlinear(2).problem()
    blocks = np.array([0, 1, 1])
    result = solve(
        problem,
        "ssi-hg",
        sigma=np.float64(0.05),
        tau=np.float64(0.05),
        iterations=3,
        blocks=blocks,  # type: ignore[arg-type]
    )
    result.state.save(tmp_path / "s.safetensors")
    result.history.save(tmp_path / "h.json")
    again = solve(problem, "ssi-hg", **STEPS, iterations=9, callback=lambda p: np.bool_(p.iteration == 4))
    assert again.state.iteration == 4


def test_many_blocks_are_set_up_quickly() -> None:
    """Choosing steps must not take a number of passes that grows with n."""
    calls = 0

    def coupling(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        nonlocal calls
        calls += 1
        return torch.tanh(delta @ w)

    solve(Problem(coupling, torch.ones(2), torch.ones(3000, 2)), "ssi-hg", iterations=1, record_every=None)
    assert calls < 400


@pytest.mark.parametrize(("bilinear", "factor"), [(False, 2.0), (True, 1.05)])
def test_estimated_constants_are_used_with_a_safety_factor(bilinear: bool, factor: float) -> None:
    A = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = Problem.bilinear(A, f=SquaredL2(1.0)) if bilinear else nonlinear(3).problem()
    seen = measure.estimate_constants(problem)
    scaled = {name: factor * (getattr(seen, name) or 0.0) for name in ("L11", "L12", "L22", "L12_block")}
    wanted = METHODS["ssi-hg"].choose(problem, Constants(**scaled))  # type: ignore[arg-type]
    chosen = solve(problem, "ssi-hg", iterations=0).steps
    assert (chosen.sigma, chosen.tau) == (wanted.sigma, wanted.tau)
    assert f"times {factor:g}" in chosen.source
