"""On bilinear couplings SSI-HG and SPDHG are ODL's SPDHG, iterate by iterate."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.odl_spdhg import load
from sihg.core.prox import L1, Convex, LinfBall, SquaredL2
from sihg.minimax import Problem, Progress, solve

odl = pytest.importorskip("odl", reason="odl is not installed: pip install 'sihg[peer]'")

pytestmark = pytest.mark.peer

ITERATIONS = 1000
FEATURES = 6


class Case(NamedTuple):
    """f and g_i in our words and in ODL's, which calls our f g and asks for the conjugates of our g_i as f_i."""

    f: Callable[[Tensor], Convex]
    g: Callable[[Tensor], Convex]
    odl_g: Callable[[Any], Any]
    odl_f: Callable[[Any], Any]


# Each takes the centre: of w for f, of the block for g.
CASES = {
    "denoising": Case(
        f=lambda c: SquaredL2(0.4, c),
        g=lambda c: LinfBall(0.15),  # noqa: ARG005
        odl_g=lambda c: 0.2 * odl.functionals.L2NormSquared(c.space).translated(c),
        odl_f=lambda c: 0.15 * odl.functionals.L1Norm(c.space),
    ),
    "lasso": Case(
        f=lambda c: L1(0.05),  # noqa: ARG005
        g=lambda c: SquaredL2(0.5, c),
        odl_g=lambda c: 0.05 * odl.functionals.L1Norm(c.space),
        # |y + c/2|^2, which is |y|^2 + <c, y> up to a constant
        odl_f=lambda c: odl.functionals.L2NormSquared(c.space).translated(-0.5 * c),
    ),
}


class Setting(NamedTuple):
    """Blocks of different sizes, a start away from zero, and a fixed sequence of blocks."""

    blocks: list[Tensor]
    w0: Tensor
    delta0: list[Tensor]
    w_centre: Tensor
    delta_centres: list[Tensor]
    step: float
    sequence: list[int]


@cache
def setting(n: int) -> Setting:
    draw = torch.Generator().manual_seed(n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    sizes = [3 + i % 3 for i in range(n)]
    blocks = [normal(size, FEATURES) for size in sizes]
    step = 0.9 / (n**0.5 * max(float(torch.linalg.matrix_norm(block, 2)) for block in blocks))
    return Setting(
        blocks,
        normal(FEATURES),
        [normal(size) for size in sizes],
        normal(FEATURES),
        [normal(size) for size in sizes],
        step,
        torch.randint(n, (ITERATIONS,), generator=draw).tolist(),
    )


@cache
def odl_path(n: int, theta: float, case: str) -> Tensor:
    """Row k: w^{k+1} and all of delta^{k+1} by ODL."""
    s, functions = setting(n), CASES[case]
    A = odl.BroadcastOperator(*(odl.MatrixOperator(block.numpy()) for block in s.blocks))
    x, y = A.domain.element(s.w0.numpy().copy()), A.range.element([start.numpy().copy() for start in s.delta0])
    f = [functions.odl_f(space.element(centre.numpy())) for space, centre in zip(A.range, s.delta_centres, strict=True)]
    path = []

    def keep(iterate: Any) -> None:
        primal, dual = iterate
        path.append(torch.cat([torch.from_numpy(part.asarray().copy()) for part in (primal, *dual)]))

    load()(
        *(x, f, functions.odl_g(A.domain.element(s.w_centre.numpy())), A, s.step, [s.step] * n, ITERATIONS),
        y=y,
        theta=theta,
        fun_select=lambda k: [s.sequence[k]],
        callback=keep,
    )
    return torch.stack(path)


def our_path(method: str, n: int, theta: float, case: str) -> Tensor:
    s, functions = setting(n), CASES[case]
    g = [functions.g(centre) for centre in s.delta_centres]
    problem = Problem.bilinear(s.blocks, s.w0, s.delta0, functions.f(s.w_centre), g)
    path = []

    def keep(progress: Progress) -> None:
        assert isinstance(progress.w, Tensor)
        path.append(torch.cat([progress.w, *progress.delta]))

    steps = {"sigma": s.step, "tau": s.step, "theta": theta}
    solve(problem, method, **steps, iterations=ITERATIONS, blocks=s.sequence, callback=keep, record_every=None)  # type: ignore[arg-type]
    return torch.stack(path)


@pytest.mark.parametrize("method", ["ssi-hg", "spdhg"])
@pytest.mark.parametrize("n", [1, 4, 16])
@pytest.mark.parametrize("theta", [1.0, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_every_iterate_is_odls(method: str, n: int, theta: float, case: str) -> None:
    ours, theirs = our_path(method, n, theta, case), odl_path(n, theta, case)
    assert ours.shape == theirs.shape == (ITERATIONS, FEATURES + sum(map(len, setting(n).blocks)))
    moved = (theirs[1:] - theirs[:-1]).abs().amax(1)
    assert float(moved[: ITERATIONS // 100].min()) > 1e-6  # an equality of paths that stand still would say nothing
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
