"""The appendix as tests: the identities in expectation, the implicit step as a minimisation, Lemma 6."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from sihg.core.prox import Box
from sihg.minimax import Problem, solve
from sihg.minimax._oracle import Oracle, implicit
from sihg.minimax.solvers.ssi_hg import SSIHG, SSIHGState
from tests.minimax.problems import nonlinear

SIGMA, TAU = 0.08, 0.05


def branches(n: int, iterations: int) -> tuple[Problem, Tensor, list[Tensor], Tensor, Tensor, SSIHGState]:
    """A state of SSI-HG, delta^{k+1} for every choice of i_k, delta-hat^{k+1}, and w^{k+1}."""
    problem = nonlinear(n).problem()
    at = solve(problem, "ssi-hg", sigma=SIGMA, tau=TAU, iterations=iterations, record_every=None).state
    method, state = at.method, at.inner
    assert isinstance(method, SSIHG)
    assert isinstance(state, SSIHGState)
    delta = state.delta.clone()
    oracle = Oracle(problem, at.curvature)
    ends = [method.step(oracle, replace(state, delta=delta.clone()), i) for i in range(n)]
    w = ends[0].w
    assert all(torch.equal(end.w, w) for end in ends)
    hat = implicit(problem, w, delta, TAU, problem.all, at.curvature).point
    return problem, delta, [end.delta for end in ends], hat, w, ends[0]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_identities_of_the_first_lemma(n: int) -> None:
    problem, delta, ends, hat, w, _ = branches(n, 7)

    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack(values).mean(0)

    def separable(d: Tensor) -> Tensor:
        return problem.coupling.phi(w, d, problem.all).sum() + d.sin().sum()

    for r in (separable, lambda d: problem.gradient_w(w, d, problem.all)):  # e1
        expected = mean([r(d) for d in ends])
        torch.testing.assert_close(r(hat), expected + (n - 1) * (expected - r(delta)), rtol=0, atol=1e-12)
    other = torch.linspace(-1, 1, delta.numel(), dtype=delta.dtype)

    def squared(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).square().sum() / TAU

    e2 = n * mean([squared(other, d) for d in ends]) - (n - 1) * squared(other, delta)
    torch.testing.assert_close(squared(other, hat), e2, rtol=1e-12, atol=0)
    e3 = n * mean([squared(d, delta) for d in ends])
    torch.testing.assert_close(squared(hat, delta), e3, rtol=1e-10, atol=0)


def test_measured_point_is_delta_hat() -> None:
    """solve measures at delta-hat^{k+1}, whichever block was drawn."""
    problem, _, _, hat, w, end = branches(5, 7)
    measured_w, measured = SSIHG(SIGMA, TAU).measured_at(Oracle(problem, 1.0), end)
    assert torch.equal(measured_w, w)
    torch.testing.assert_close(measured, hat, rtol=0, atol=1e-14)


@pytest.mark.parametrize("tau", [0.05, 0.4])
def test_implicit_step_is_the_minimiser(tau: float) -> None:
    """Line 6 solves argmin g - phi + |delta - delta^k|^2/(2 tau), found here by SciPy."""
    problem = nonlinear(1, g=Box(-0.5, 0.4)).problem()
    w, centre = problem.w0, problem.delta0

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        d = torch.from_numpy(x)
        value = -problem.coupling.phi(w, d, problem.all).sum() + (d - centre).square().sum() / (2 * tau)
        slope = -problem.gradient_delta(w, d, problem.all) + (d - centre) / tau
        return float(value), slope.numpy()

    found = scipy.optimize.minimize(
        objective,
        centre.numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-0.5, 0.4)] * 3,
        options={"ftol": 0, "gtol": 1e-12},
    )
    step = implicit(problem, w, centre, tau, problem.all, 1.5)
    assert step.converged
    np.testing.assert_allclose(step.point.numpy(), found.x, atol=2e-8)
