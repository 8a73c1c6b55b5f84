"""Descent ascent, alternating and extragradient compared with cooper, iterate by iterate.

cooper solves min F(w) subject to G(w) <= 0 by its Lagrangian, phi(w, d) = F(w) + <d, G(w)> with d >= 0.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.minimax import NonNegative, Problem, Progress, solve

cooper: Any = pytest.importorskip("cooper", reason="cooper is not installed")

pytestmark = pytest.mark.peer

SIGMA, TAU, ITERATIONS = 0.05, 0.08, 200
TARGET = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
MATRIX = torch.tensor([[1.0, 2.0, -1.0], [-0.5, 1.0, 1.0]], dtype=torch.float64)


def objective(w: Tensor) -> Tensor:
    return (w - TARGET).square().sum() / 2 + torch.sin(w).sum() / 4


def violation(w: Tensor) -> Tensor:
    return MATRIX @ w + w[:2] ** 3 / 6 + 2


class Constrained(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
    """The problem in cooper's form."""

    def __init__(self) -> None:
        super().__init__()
        self.multiplier = cooper.multipliers.DenseMultiplier(init=torch.zeros(2), dtype=torch.float64)
        self.constraint = cooper.Constraint(
            multiplier=self.multiplier,
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
        )

    def compute_cmp_state(self, w: Tensor) -> Any:
        state = cooper.ConstraintState(violation=violation(w))
        return cooper.CMPState(loss=objective(w), observed_constraints={self.constraint: state})


def theirs(scheme: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield cooper's iterates."""
    cmp, w = Constrained(), torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    sgd = cooper.optim.ExtraSGD if scheme == "ExtrapolationConstrainedOptimizer" else torch.optim.SGD
    primal, dual = sgd([w], lr=SIGMA), sgd(cmp.dual_parameters(), lr=TAU, maximize=True)
    optimizer = getattr(cooper.optim, scheme)(cmp=cmp, primal_optimizers=primal, dual_optimizers=dual)
    for _ in range(ITERATIONS):
        optimizer.roll(compute_cmp_state_kwargs={"w": w})
        yield w.detach().clone(), cmp.multiplier.weight.detach().clone()


@pytest.mark.parametrize(
    ("method", "scheme", "options"),
    [
        ("gda", "SimultaneousOptimizer", {}),
        ("altgda", "AlternatingPrimalDualOptimizer", {"momentum_w": 0.0}),
        ("extragradient", "ExtrapolationConstrainedOptimizer", {}),
    ],
)
def test_every_iterate_is_coopers(method: str, scheme: str, options: dict[str, Any]) -> None:
    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return objective(w) + delta @ violation(w)

    problem = Problem(phi, torch.zeros(3, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64), g=NonNegative())
    ours: list[tuple[Tensor, Tensor]] = []

    def keep(progress: Progress) -> None:
        ours.append((progress.state.w.clone(), progress.state.delta.clone()))

    solve(problem, method, sigma=SIGMA, tau=TAU, iterations=ITERATIONS, record_every=None, callback=keep, **options)
    pairs = list(zip(ours, theirs(scheme), strict=True))
    assert max(float((a - b).abs().max()) for mine, other in pairs for a, b in zip(mine, other, strict=True)) < 1e-12
    assert max(float(delta.max()) for _, delta in ours) > 0.1  # a constraint is active
