"""Adaptive steps on nonmonotone games, and where no step helps."""

import pytest
import torch
from torch import Tensor

from sihg.minimax import L1, Box, Problem, solve, zoo
from sihg.minimax.starts import random_start


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("lower-bound", "inexact-ppm"),
        *(
            ("forsaken", method)
            for method in ("ssi-hg", "dsi-hg", "extragradient", "eg+", "adaptive-eg+", "inexact-ppm")
        ),
    ],
)
def test_equal_steps_keep_out_of_the_cycle(name: str, method: str) -> None:
    """With sigma and tau balanced, all of these end in a cycle or diverge."""
    result = solve(zoo.get(name).problem, method, steps="adaptive", iterations=800, tolerance=1e-6)
    assert result.stopped.startswith("tolerance"), result.stopped
    assert result.steps.sigma == result.steps.tau


@pytest.mark.filterwarnings("ignore::sihg.errors.StepSizeWarning")
@pytest.mark.parametrize(("name", "start"), [("forsaken", 5), ("forsaken", 24), ("forsaken", 28), ("polar-game", 17)])
def test_starts_beside_an_unstable_cycle(name: str, start: int) -> None:
    """EG+ converges from these; the last is at radius 0.745, and the cycle at 0.75."""
    problem = random_start(zoo.get(name).problem, start)
    result = solve(problem, "ssi-hg", steps="adaptive", iterations=400, tolerance=1e-3, seed=start)
    assert result.stopped.startswith("tolerance"), result.stopped


@pytest.mark.parametrize("start", [5, 24])
def test_unequal_steps_move_the_cycle(start: int) -> None:
    problem = random_start(zoo.get("forsaken").problem, start)
    equal = solve(problem, "eg+", sigma=0.2, tau=0.2, iterations=800, record_every=20, tolerance=1e-3)
    unequal = solve(problem, "eg+", sigma=0.2, tau=0.04, iterations=800, record_every=20, tolerance=1e-3)
    assert equal.stopped.startswith("tolerance")
    assert unequal.stopped == "800 iterations done"


@pytest.mark.parametrize("method", ["ssi-hg", "dsi-hg", "extragradient", "spdhg", "altgda", "mgda"])
def test_little_is_remembered_while_w_stays(method: str) -> None:
    """f holds w at 0 while delta moves: what an iteration did not ask for is dropped."""
    draw = torch.Generator().manual_seed(0)
    blocks = torch.randn(6, 3, 2, generator=draw, dtype=torch.float64)
    zeros = torch.zeros(2, dtype=torch.float64), torch.full((6, 3), 0.5, dtype=torch.float64)
    problem = Problem.bilinear(blocks, *zeros, f=L1(1e3), g=Box(-1, 1))
    result = solve(problem, method, steps="adaptive", iterations=60, record_every=None)
    assert result.state.adaptive is not None
    assert len(result.state.adaptive.memory) <= 4, result.stopped


@pytest.mark.parametrize("name", ["global-forsaken", "polar-game", "bilinearly-coupled"])
def test_mgda_takes_steps_that_a_smaller_sigma_allows(name: str) -> None:
    result = solve(zoo.get(name).problem, "mgda", steps="adaptive", iterations=100, record_every=None)
    assert result.stopped == "100 iterations done"


def test_a_solution_is_no_stall() -> None:
    result = solve(zoo.get("matrix-game").problem, "ssi-hg", steps="adaptive", iterations=200, record_every=200)
    assert result.stopped == "200 iterations done"
    assert result.history["saddle_norm_squared"][-1] < 1e-25


@pytest.mark.parametrize(
    ("method", "steps"), [("ssi-hg", "adaptive"), ("curvature-eg+", "theorem"), ("inexact-ppm", "theorem")]
)
def test_a_coupling_that_is_not_smooth_stalls(method: str, steps: str) -> None:
    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (w.abs() * delta).sum(1)

    starts = torch.tensor([0.5, -0.3], dtype=torch.float64), torch.full((1, 2), 0.7, dtype=torch.float64)
    result = solve(Problem(phi, *starts, g=Box(0.5, 1)), method, steps=steps, iterations=300)
    assert result.stopped.startswith("stalled at iteration "), result.stopped
