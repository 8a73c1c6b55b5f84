"""DSI-HG on a bilinear problem compared with pyproximal's primal-dual method (Chambolle-Pock), iterate by iterate.

Ours steps in w along the extrapolated dual, then in delta. Theirs steps in y along the extrapolated x, then in x. So x
is delta and y is w: min_x g(x) + f*(-A'x), with f = (lambda/2) |w|^2 and f* = |.|^2 / (2 lambda).
"""

from typing import Any

import numpy as np
import pytest
import torch

from sihg.minimax import Box, Problem, Progress, SquaredL2, solve

pylops: Any = pytest.importorskip("pylops", reason="pylops is not installed")
pyproximal: Any = pytest.importorskip("pyproximal", reason="pyproximal is not installed")
primal_dual: Any = pytest.importorskip("pyproximal.optimization.primaldual")

pytestmark = pytest.mark.peer

WEIGHT, ITERATIONS = 0.3, 200


@pytest.mark.parametrize("theta", [1.0, 0.7])
@pytest.mark.parametrize("n", [1, 3])
def test_every_iterate_is_pyproximals(n: int, theta: float) -> None:
    draw = torch.Generator().manual_seed(0)
    blocks = torch.randn(n, 4, 5, generator=draw, dtype=torch.float64)
    A = blocks.flatten(0, 1)
    step = 0.9 / float(torch.linalg.matrix_norm(A, 2))
    sigma, tau = float(np.float32(2 * step)), float(np.float32(step / 2))  # pyproximal rounds steps to float32
    w0 = torch.randn(5, generator=draw, dtype=torch.float64)
    problem = Problem.bilinear(
        blocks, w0, torch.full((n, 4), 0.2, dtype=torch.float64), SquaredL2(WEIGHT), Box(0.1, 0.4)
    )
    ours: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
    theirs: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def keep(progress: Progress) -> None:
        ours.append((progress.state.w.numpy().copy(), progress.state.delta.numpy().copy()))

    settings: dict[str, Any] = {"sigma": sigma, "tau": tau, "theta": theta}
    solve(problem, "dsi-hg", iterations=ITERATIONS, record_every=None, callback=keep, **settings)
    primal_dual.PrimalDual(
        pyproximal.Box(0.1, 0.4),
        pyproximal.L2(sigma=1 / WEIGHT),
        pylops.MatrixMult(-A.t().numpy()),
        np.full(4 * n, 0.2),
        tau=tau,
        mu=sigma,
        y0=w0.numpy().copy(),
        theta=theta,
        niter=ITERATIONS,
        gfirst=True,
        callback=lambda x, y: theirs.append((y.copy(), x.copy())),
        callbacky=True,
    )
    for (w, delta), (y, x) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(w, y, atol=1e-12)
        np.testing.assert_allclose(delta, x, atol=1e-12)
    assert np.isclose(ours[-1][1], 0.1).any()  # a bound is active
