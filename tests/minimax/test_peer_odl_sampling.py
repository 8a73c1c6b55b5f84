"""SPDHG with importance sampling is ODL's SPDHG with probabilities and a step per block, iterate by iterate."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.odl_spdhg import load
from sihg.minimax import Problem, Progress, solve
from sihg.minimax.solvers.block_norms import block_norms
from tests.minimax.test_peer_odl import CASES, FEATURES, setting

odl = pytest.importorskip("odl", reason="odl is not installed: pip install 'sihg[peer]'")

pytestmark = pytest.mark.peer

ITERATIONS = 300


def unequal(n: int) -> list[Tensor]:
    """The blocks of `setting`, with norms that differ by a factor of about 10."""
    return [block * 10 ** (i / n) for i, block in enumerate(setting(n).blocks)]


@pytest.mark.parametrize("n", [1, 4, 16])
@pytest.mark.parametrize("theta", [1.0, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_every_iterate_is_odls(n: int, theta: float, case: str) -> None:
    s, functions, blocks = setting(n), CASES[case], unequal(n)
    g = [functions.g(centre) for centre in s.delta_centres]
    problem = Problem.bilinear(blocks, s.w0, s.delta0, functions.f(s.w_centre), g)
    norms = block_norms(problem)
    p, step = (norms / norms.sum()).tolist(), 0.9 / (float(norms.mean()) * n**0.5)
    ours, theirs = [], []

    def keep_ours(progress: Progress) -> None:
        assert isinstance(progress.w, Tensor)
        ours.append(torch.cat([progress.w, *progress.delta]))

    def keep_theirs(iterate: Any) -> None:
        primal, dual = iterate
        theirs.append(torch.cat([torch.from_numpy(part.asarray().copy()) for part in (primal, *dual)]))

    settings: dict[str, Any] = {"steps": {"sigma": step, "tau": step, "theta": theta}, "record_every": None}
    solve(problem, "spdhg-importance", iterations=ITERATIONS, blocks=s.sequence, callback=keep_ours, **settings)

    A = odl.BroadcastOperator(*(odl.MatrixOperator(block.numpy()) for block in blocks))
    x, y = A.domain.element(s.w0.numpy().copy()), A.range.element([start.numpy().copy() for start in s.delta0])
    f = [functions.odl_f(space.element(centre.numpy())) for space, centre in zip(A.range, s.delta_centres, strict=True)]
    load()(
        *(
            x,
            f,
            functions.odl_g(A.domain.element(s.w_centre.numpy())),
            A,
            step,
            [step / (n * q) for q in p],
            ITERATIONS,
        ),
        y=y,
        theta=theta,
        prob=p,
        fun_select=lambda k: [s.sequence[k]],
        callback=keep_theirs,
    )
    assert len(ours) == len(theirs) == ITERATIONS
    assert ours[0].numel() == FEATURES + sum(map(len, blocks))
    moved = (torch.stack(theirs)[1:] - torch.stack(theirs)[:-1]).abs().amax(1)
    assert float(moved[:10].min()) > 1e-9
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
