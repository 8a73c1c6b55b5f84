"""The choice of a method by trials."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from sihg.errors import EstimateWarning
from sihg.minimax import Problem, SolveState, compare, measure, solve, zoo
from sihg.minimax.auto import CANDIDATES, FIRST_BUDGET
from sihg.minimax.comparison import Comparison
from sihg.minimax.solvers import method_name
from tests.minimax.problems import nonlinear
from tests.refused import refused


@pytest.mark.parametrize("name", ["ridge", "weak-mvi", "matrix-game", "lower-bound"])
def test_auto_goes_on_with_the_best_candidate(name: str) -> None:
    problem = zoo.get(name).problem
    result = solve(problem, "auto", iterations=20, record_every=5)
    finalists = [c for c in result.candidates if c.gradients == max(c.gradients for c in result.candidates)]
    best = min(result.candidates[:2], key=lambda candidate: candidate.saddle_norm_squared)
    assert best.saddle_norm_squared <= min(c.saddle_norm_squared for c in finalists)
    assert method_name(result.state.method) == best.method
    assert result.steps.source.startswith(f"auto: {best.method} with {best.steps} steps, |F|^2 ")
    before = int(result.history["iteration"][0])  # of the trial
    assert result.state.iteration == before + 20
    steps = None if best.method == "curvature-eg+" else best.steps
    alone = solve(problem, best.method, steps=steps or "theorem", iterations=before + 20, record_every=None)
    assert torch.equal(torch.as_tensor(result.w), torch.as_tensor(alone.w))
    tried = sum(candidate.gradients for candidate in result.candidates)
    ours, theirs = (r.state.w_gradients + r.state.delta_gradients for r in (result, alone))
    assert ours == theirs + tried - best.gradients
    assert result.history["w_gradients"][0] + result.history["delta_gradients"][0] == tried


def test_candidates_get_equal_gradients() -> None:
    """In all rounds together they differ by at most one iteration, which may have failed trials."""
    problem = nonlinear(4).problem()
    counts = sorted(candidate.gradients for candidate in solve(problem, "auto", iterations=1).candidates)
    assert len(counts) == len(CANDIDATES) == 8
    one_iteration = 6 * 2 * problem.n
    for k, count in enumerate(counts):
        r = 0 if k < 4 else 1 if k < 6 else 2
        wanted = FIRST_BUDGET * problem.n * (2 ** (r + 1) - 1)
        assert wanted <= count < wanted + one_iteration, (k, counts)


def test_a_choice_among_candidates_that_all_fail_is_said() -> None:
    """On a w^2 / 2 with a < 0 every method moves away from the only stationary point."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (-(w @ w) / 2 + w[0] * delta[:, 0] * 0.1 + (delta * delta).sum(1) / 2) * 1.0

    problem = Problem(phi, torch.ones(1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    with pytest.warns(EstimateWarning, match="auto: no candidate"):
        result = solve(problem, "auto", iterations=1)
    start = measure.saddle_norm_squared(problem, torch.ones(1, dtype=torch.float64), problem.delta_form(problem.delta0))
    assert min(candidate.saddle_norm_squared for candidate in result.candidates) >= start


def test_auto_is_the_same_again_and_continues(tmp_path: Path) -> None:
    problem = nonlinear(3).problem()
    whole = solve(problem, "auto", iterations=30)
    half = solve(problem, "auto", iterations=10)
    state = SolveState.load(half.state.save(tmp_path / "state.safetensors"))
    assert state.candidates == whole.candidates
    rest = solve(problem, "auto", iterations=20, state=state)
    assert torch.equal(torch.as_tensor(rest.w), torch.as_tensor(whole.w))
    assert rest.state.w_gradients == whole.state.w_gradients


def test_steps_restrict_the_candidates() -> None:
    result = solve(nonlinear(2).problem(), "auto", steps="adaptive", iterations=1)
    assert {candidate.steps for candidate in result.candidates} == {"adaptive"}
    with refused("unknown-steps", name="fast"):
        solve(nonlinear(2).problem(), "auto", steps="fast")


def test_candidates_that_cannot_begin_are_passed_over() -> None:
    """Without coupling the theorems choose no steps, but extragradient and its like have 1/L."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        return ((w - 1).square().sum() / 2 - delta.square() / 2)[:, 0] * (index < 2)

    problem = Problem(phi, torch.zeros(1), torch.ones(2, 1))
    result = solve(problem, "auto", iterations=40)
    assert {candidate.method for candidate in result.candidates} == {
        *("extragradient", "eg+", "optimistic", "inexact-ppm", "curvature-eg+")
    }
    assert result.history["saddle_norm_squared"][-1] < 1e-7


def test_auto_in_a_comparison(tmp_path: Path) -> None:
    settings = {"iterations": 30, "record_every": 10}
    row, other = compare("weak-mvi", "auto,gda", **settings).methods  # type: ignore[arg-type]
    assert (row.method, other.method) == ("auto", "gda")
    assert row.source.startswith("auto: ")
    compare("weak-mvi", "auto", folder=tmp_path / "c", **{**settings, "iterations": 10})  # type: ignore[arg-type]
    resumed = Comparison.resumed(tmp_path / "c", 30)
    again = resumed.run("auto")
    resumed.close()
    assert (again.saddle_norm_squared, again.w_gradients) == (row.saddle_norm_squared, row.w_gradients)


def test_a_resumed_choice_takes_no_numbers_either() -> None:
    problem = zoo.get("weak-mvi").problem
    state = solve(problem, "auto", iterations=5).state
    with refused("auto-settings", name="sigma"):
        solve(problem, "auto", state=state, sigma=0.1)
    with refused("auto-settings", name="tau"):
        solve(problem, "auto", state=state, steps={"tau": 0.1})


def test_the_path_of_a_trial_is_kept(tmp_path: Path) -> None:
    """Of a problem in the plane the trajectory has every iterate, those of the trial too."""
    (row,) = compare("forsaken", "auto", iterations=10, folder=tmp_path / "c").methods
    columns, *points = (tmp_path / "c" / "auto" / "trajectory.csv").read_text().splitlines()
    assert columns.startswith("iteration,w,delta")
    assert len(points) == row.iterations + 1
    assert row.iterations > 10
