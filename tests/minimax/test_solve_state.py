"""A solve continues exactly, and shares no memory with its results."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sihg.errors import InputError
from sihg.minimax import METHODS, SolveState, solve, zoo
from sihg.store.seal import NO_SUM, seal
from tests.minimax.problems import nonlinear
from tests.refused import refused

STEPS: dict[str, Any] = {"sigma": 0.08, "tau": 0.05}


@pytest.mark.parametrize("method", METHODS)
def test_state_continues_exactly(method: str, tmp_path: Path) -> None:
    """20 + 30 iterations equal 50, in memory and through a file, and the state given is not changed."""
    problem = zoo.get("ridge").problem
    settings: dict[str, Any] = {"seed": 5, "record_every": 5}
    whole = solve(problem, method, iterations=50, **settings)
    half = solve(problem, method, iterations=20, **settings)
    kept = half.state.inner.delta.clone()
    loaded = SolveState.load(half.state.save(tmp_path / "state.safetensors"))
    for state in (half.state, loaded):
        rest = solve(problem, method, iterations=30, state=state, record_every=5)
        assert torch.equal(rest.state.inner.w, whole.state.inner.w)
        assert torch.equal(rest.state.inner.delta, whole.state.inner.delta)
        assert rest.state.w_gradients == whole.state.w_gradients
        for column in ("iteration", "w_gradients", "delta_gradients", "saddle_norm_squared"):
            assert half.history[column] + rest.history[column] == whole.history[column]
    assert torch.equal(half.state.inner.delta, kept)


def test_state_of_a_nonlinear_problem_continues_exactly() -> None:
    problem = nonlinear(4).problem()
    whole = solve(problem, "ssi-hg", **STEPS, iterations=30, record_every=None)
    half = solve(problem, "ssi-hg", **STEPS, iterations=17, record_every=None)
    rest = solve(problem, "ssi-hg", iterations=13, state=half.state, record_every=None)
    assert torch.equal(rest.state.inner.w, whole.state.inner.w)
    assert torch.equal(rest.state.inner.delta, whole.state.inner.delta)


def test_state_may_take_new_steps() -> None:
    problem = nonlinear(4).problem()
    half = solve(problem, "ssi-hg", **STEPS, iterations=5, record_every=None)
    rest = solve(problem, "ssi-hg", iterations=5, state=half.state, tau=0.02, record_every=None)
    assert (rest.steps.sigma, rest.steps.tau) == (0.08, 0.02)


def test_state_of_another_problem_or_method_or_damaged(tmp_path: Path) -> None:
    state = solve(nonlinear(4).problem(), "ssi-hg", **STEPS, iterations=3, record_every=None).state
    with refused("state-of-another-problem", variable="delta", found=12):
        solve(nonlinear(2).problem(), "ssi-hg", state=state)
    with refused("state-of-another-method", method="gda"):
        solve(nonlinear(4).problem(), "gda", state=state)
    path = state.save(tmp_path / "s.safetensors")
    path.write_bytes(path.read_bytes()[:50])
    with refused("seal-missing", path=path):
        SolveState.load(path)
    path.write_bytes(seal(b"not a state " + NO_SUM.encode()))
    with refused("state-unreadable", path=path):
        SolveState.load(path)
    with refused("state-unreadable"):
        SolveState.load(tmp_path / "absent")


def test_a_changed_byte_in_a_state_is_noticed(tmp_path: Path) -> None:
    state = solve(nonlinear(4).problem(), "ssi-hg", **STEPS, iterations=3, record_every=None).state
    path = state.save(tmp_path / "s.safetensors")
    before = path.read_bytes()
    for place in range(len(before)):
        path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        with pytest.raises(InputError) as caught:
            SolveState.load(path)
        assert caught.value.code in ("seal-wrong", "seal-missing"), place
    path.write_bytes(before)
    assert torch.equal(SolveState.load(path).inner.w, state.inner.w)


def test_continuing_checks_its_steps_too() -> None:
    problem = nonlinear(2).problem()
    state = solve(problem, "ssi-hg", **STEPS, iterations=2).state
    with refused("step-size-range", name="sigma", value=-1.0):
        solve(problem, "ssi-hg", state=state, sigma=-1.0)


@pytest.mark.parametrize("method", METHODS)
def test_results_and_problems_share_no_memory(method: str) -> None:
    problem = zoo.get("ridge").problem
    start = problem.w0.clone(), problem.delta0.clone()
    for iterations in (0, 3):
        result = solve(problem, method, iterations=iterations, record_every=None)
        kept = result.state.inner.w.clone(), result.state.inner.delta.clone()
        torch.as_tensor(result.w).fill_(7)
        torch.as_tensor(result.delta).fill_(7)
        assert torch.equal(result.state.inner.w, kept[0])
        assert torch.equal(result.state.inner.delta, kept[1])
    assert torch.equal(problem.w0, start[0])
    assert torch.equal(problem.delta0, start[1])
