"""The loop: what it records, why it stops, how it goes on, what it refuses."""

import csv
import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sihg.core.prox import Box, SquaredL2
from sihg.errors import EstimateWarning, InputError, StepSizeError, StepSizeWarning, UnknownNameError
from sihg.minimax import METHODS, History, LinearMap, Problem, Progress, SolveState, measure, solve, zoo
from sihg.minimax import step_sizes as steps
from tests.minimax.problems import nonlinear

STEPS: dict[str, Any] = {"sigma": 0.08, "tau": 0.05}


def test_history_has_the_columns_and_the_ends() -> None:
    result = solve(nonlinear(3).problem(), "ssi-hg", **STEPS, iterations=25, record_every=10)
    assert result.history["iteration"] == [0, 10, 20, 25]
    wanted = [
        "iteration",
        "w_gradients",
        "delta_gradients",
        "seconds",
        "saddle_norm_squared",
        "implicit_steps",
        "implicit_error",
    ]
    assert list(result.history.columns) == wanted
    assert result.stopped == "25 iterations done"
    assert result.history["seconds"] == sorted(result.history["seconds"])


def test_measuring_changes_neither_the_path_nor_the_count() -> None:
    problem = nonlinear(3).problem()
    quiet = solve(problem, "ssi-hg", **STEPS, iterations=40, record_every=None)
    loud = solve(problem, "ssi-hg", **STEPS, iterations=40, record_every=1)
    assert len(quiet.history) == 0
    assert torch.equal(quiet.state.inner.w, loud.state.inner.w)
    assert torch.equal(quiet.state.inner.delta, loud.state.inner.delta)
    assert quiet.state.w_gradients == loud.state.w_gradients


def test_history_saves_as_json_and_csv(tmp_path: Path) -> None:
    history = solve(nonlinear(2).problem(), "dsi-hg", **STEPS, iterations=20).history
    history.append({**dict.fromkeys(history.columns, 1.0), "saddle_norm_squared": float("inf")})
    history.save(tmp_path / "h.json")
    history.save(tmp_path / "h.csv")
    content = json.loads((tmp_path / "h.json").read_text())
    assert content["about"]["method"] == "dsi-hg"
    assert content["columns"]["saddle_norm_squared"][-1] is None
    assert History.load(tmp_path / "h.json").columns == history.columns
    with (tmp_path / "h.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["saddle_norm_squared"]) for row in rows] == history["saddle_norm_squared"]
    with pytest.raises(InputError, match=r"saved as .json or .csv, got 'h.txt'"):
        history.save(tmp_path / "h.txt")
    with pytest.raises(InputError, match="has no column 'loss': it has iteration"):
        history["loss"]
    (tmp_path / "h.json").write_text("{}")
    with pytest.raises(InputError, match="is not a history"):
        History.load(tmp_path / "h.json")


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
    with pytest.raises(InputError, match=r"state has 12 numbers of torch.float64 in delta, the problem 6"):
        solve(nonlinear(2).problem(), "ssi-hg", state=state)
    with pytest.raises(InputError, match="state is of ssi-hg, not gda"):
        solve(nonlinear(4).problem(), "gda", state=state)
    path = state.save(tmp_path / "s.safetensors")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match=r"s.safetensors is not a saved solve state"):
        SolveState.load(path)
    with pytest.raises(InputError, match="is not a saved solve state"):
        SolveState.load(tmp_path / "absent")


def test_seed_and_blocks_decide_the_path() -> None:
    problem = nonlinear(4).problem()

    def end(**settings: Any) -> Tensor:
        return solve(problem, "ssi-hg", **STEPS, iterations=9, record_every=None, **settings).state.inner.delta

    assert torch.equal(end(seed=1), end(seed=1))
    assert not torch.equal(end(seed=1), end(seed=2))
    moved = end(blocks=[2] * 9)
    start = problem.delta0
    assert torch.equal(moved.view(4, 3)[[0, 1, 3]], start.view(4, 3)[[0, 1, 3]])
    assert not torch.equal(moved.view(4, 3)[2], start.view(4, 3)[2])


def test_drawn_blocks_are_uniform() -> None:
    from sihg.minimax.solve import _draws

    draws = _draws(0, 5, 0)
    drawn = torch.tensor([next(draws) for _ in range(20_000)])
    counts = torch.bincount(drawn, minlength=5)
    assert (counts - 4000).abs().max() < 4 * (20_000 * 0.2 * 0.8) ** 0.5
    later = _draws(0, 5, 5000)
    assert [next(later) for _ in range(50)] == drawn[5000:5050].tolist()


def test_tolerance_and_callback_stop() -> None:
    benchmark = zoo.get("quadratic")
    result = solve(benchmark.problem, "ssi-hg", tolerance=1e-4, iterations=5000)
    assert result.stopped.startswith("tolerance reached at iteration ")
    assert result.history["saddle_norm_squared"][-1] <= 1e-8 < result.history["saddle_norm_squared"][-2]
    again = solve(benchmark.problem, "ssi-hg", iterations=100, callback=lambda p: p.iteration == 13)
    assert again.stopped == "stopped by the callback at iteration 13"
    assert again.state.iteration == 13
    assert again.history["iteration"][-1] == 13
    assert benchmark.solution is not None
    arrived = Problem(lambda w, d, _: (w * d).sum(1), torch.zeros(1), torch.zeros(1, 1))
    assert solve(arrived, "gda", sigma=1, tau=1, tolerance=0.0).stopped.startswith("tolerance reached at the start")


def test_callback_sees_the_iterate() -> None:
    plain = nonlinear(3)
    seen: list[Progress] = []
    result = solve(plain.problem(), "ssi-hg", **STEPS, iterations=4, record_every=2, callback=lambda p: seen.append(p))
    assert [p.iteration for p in seen] == [1, 2, 3, 4]
    assert [p.row is not None for p in seen] == [False, True, False, True]
    assert isinstance(seen[-1].w, Tensor)
    assert torch.equal(seen[-1].w, torch.as_tensor(result.w))
    assert torch.as_tensor(seen[-1].delta).shape == (3, 3)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "spdhg"])
def test_divergence_keeps_the_last_finite_iterate(method: str) -> None:
    def steep(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (delta * w**3).sum(1) - (w**4).sum() / 4

    problem = Problem(steep, torch.ones(2), torch.ones(3, 2), constants={"L22": 0.0})
    result = solve(problem, method, sigma=2.0, tau=2.0, iterations=200, record_every=1)
    assert result.stopped.startswith("diverged at iteration ")
    assert "not finite" in result.stopped
    assert torch.as_tensor(result.w).isfinite().all()
    assert torch.as_tensor(result.delta).isfinite().all()
    assert f"iteration {result.state.iteration + 1}:" in result.stopped
    assert result.history["iteration"][-1] == result.state.iteration


def test_interrupt_ends_after_the_iteration() -> None:
    def press(progress: Progress) -> None:
        if progress.iteration == 7:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    result = solve(nonlinear(2).problem(), "ssi-hg", **STEPS, iterations=100, callback=press)
    assert result.stopped.startswith("interrupted at iteration ")
    assert result.state.iteration in (7, 8)
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_is_at_once() -> None:
    def press(progress: Progress) -> None:
        if progress.iteration >= 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        solve(nonlinear(2).problem(), "ssi-hg", **STEPS, iterations=100, callback=press)


def test_steps_are_chosen_and_their_source_told() -> None:
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


def test_outside_its_theorem_a_solve_warns_once_and_goes_on() -> None:
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
    with pytest.raises(StepSizeError, match=r"tau must be < 1/L22 = 0.12.*got 0.5: lower tau"):
        solve(problem, "ssi-hg", sigma=0.1, tau=0.5)


def test_implicit_steps_out_of_iterations_are_told() -> None:
    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (w * delta).sum(1) + 2000 * torch.cos(delta).sum(1)  # curved much more than at the start

    start = torch.full((1, 1), torch.pi / 2)
    with pytest.warns(EstimateWarning, match=r"implicit steps ended short of their tolerance .*: lower tau"):
        solve(Problem(phi, torch.ones(1), start), "dsi-hg", sigma=0.1, tau=0.1, iterations=5, record_every=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": -1}, "iterations must be a whole number >= 0, got -1"),
        ({"iterations": 2.5}, "whole number >= 0, got 2.5"),
        ({"tolerance": -1.0}, "tolerance must be >= 0, got -1.0"),
        ({"record_every": 0}, "record_every must be >= 1, or None"),
        ({"tolerance": 0.1, "record_every": None}, "set record_every"),
        ({"blocks": [0], "iterations": 2}, "blocks has 1 entries for 2 iterations"),
        ({"blocks": [0, 9], "iterations": 2}, "blocks names block 9; the problem has 0 to 1"),
        ({"sigma": -0.1}, "sigma must be finite and > 0, got -0.1"),
        ({"tau": float("nan")}, "tau must be finite and > 0, got nan"),
        ({"theta": 1.5}, r"theta must be in \[0, 1\], got 1.5"),
        ({"ascent_steps": 3}, "ssi-hg has no setting 'ascent_steps': it has sigma, tau, theta"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve(nonlinear(2).problem(), "ssi-hg", **{**STEPS, **settings})


def test_theta_where_there_is_none() -> None:
    with pytest.raises(InputError, match="gda has no setting 'theta'"):
        solve(nonlinear(2).problem(), "gda", theta=0.5, **STEPS)


def test_unknown_method() -> None:
    with pytest.raises(UnknownNameError, match="unknown method 'sgd': choose from ssi-hg, dsi-hg, spdhg"):
        solve(nonlinear(2).problem(), "sgd")


def test_zero_iterations() -> None:
    result = solve(nonlinear(2).problem(), "ssi-hg", **STEPS, iterations=0)
    assert result.stopped == "0 iterations done"
    assert result.history["iteration"] == [0]


def test_float32_works_and_stays_float32() -> None:
    plain = nonlinear(3)
    problem = Problem(
        lambda w, d, i: plain.coupling(w.double(), d.double(), i).float(),
        plain.w0.float(),
        plain.delta0.float(),
        SquaredL2(0.1),
        Box(-0.5, 0.4),
    )
    result = solve(problem, "ssi-hg", iterations=20)
    assert torch.as_tensor(result.w).dtype == torch.float32


def test_observed_lipschitz_ratios_stay_below_the_constants() -> None:
    benchmark = zoo.get("weak-mvi-nonlinear", n=4)
    seen = measure.ObservedLipschitz(benchmark.problem)
    solve(benchmark.problem, "ssi-hg", iterations=50, record_every=None, callback=seen)
    c = benchmark.constants
    assert 0 < seen.L11 <= (c.L11 or 0)
    assert 0.9 < seen.L12 <= (c.L12 or 0)
    assert 0 < seen.L22 <= (c.L22 or 0)


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


@pytest.mark.parametrize("method", ["ssi-hg", "dsi-hg", "spdhg"])
def test_a_gradient_that_is_a_view_of_delta(method: str) -> None:
    """An identity map hands delta itself back; writing delta in place must not change the kept gradient."""
    w0, delta0 = torch.ones(3, dtype=torch.float64), torch.full((1, 3), 0.5, dtype=torch.float64)
    settings: dict[str, Any] = {"sigma": 0.3, "tau": 0.3, "iterations": 20, "record_every": None}
    views = Problem.bilinear([LinearMap(lambda w: w, lambda d: d)], w0, delta0, g=Box(-1, 1))
    copies = Problem.bilinear(torch.eye(3, dtype=torch.float64)[None], w0, delta0, g=Box(-1, 1))
    one, other = (solve(problem, method, **settings).state.inner for problem in (views, copies))
    torch.testing.assert_close(one.w, other.w, rtol=0, atol=1e-14)
    torch.testing.assert_close(one.delta, other.delta, rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", ["ssi-hg", "dsi-hg", "spdhg"])
def test_adjoints_keep_their_own_memory(method: str) -> None:
    """An adjoint may return a tensor it keeps, or an expanded one; nobody writes into either."""
    zero = torch.zeros(5, dtype=torch.float64)
    kept = LinearMap(lambda w: 0 * w[:1], lambda _: zero)
    expanded = LinearMap(lambda w: w.sum()[None], lambda d: d.expand(5))
    matrices = torch.stack([torch.zeros(1, 5), torch.ones(1, 5)]).double()
    w0, delta0 = torch.ones(5, dtype=torch.float64), torch.full((2, 1), 0.3, dtype=torch.float64)
    settings: dict[str, Any] = {"sigma": 0.1, "tau": 0.1, "iterations": 30, "record_every": None}
    ends = [
        solve(Problem.bilinear(blocks, w0, delta0, SquaredL2(1.0), Box(-1, 1)), method, **settings).state.inner
        for blocks in ([kept, expanded], matrices)
    ]
    torch.testing.assert_close(ends[0].w, ends[1].w, rtol=0, atol=1e-14)
    torch.testing.assert_close(ends[0].delta, ends[1].delta, rtol=0, atol=1e-14)
    assert not zero.any()


def test_gradients_that_autograd_expands() -> None:
    """Blocks that are numbers, and a coupling through w.sum(), whose gradient is an expanded tensor."""
    problem = Problem(lambda w, d, _: d * w.sum(), torch.ones(3), torch.ones(4), f=SquaredL2(1.0), g=SquaredL2(1.0))
    result = solve(problem, "ssi-hg", sigma=0.1, tau=0.1, iterations=30)
    assert result.stopped == "30 iterations done"
    assert torch.as_tensor(result.delta).shape == (4,)


def test_large_finite_numbers_are_not_divergence() -> None:
    problem = Problem(lambda w, d, _: 1e-30 * (d @ w), torch.full((1000,), 1e36), torch.full((1, 1000), 1e-6))
    assert solve(problem, "gda", sigma=1e-6, tau=1e-6, iterations=2, record_every=None).stopped == "2 iterations done"


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
    with pytest.raises(StepSizeError, match=r"tau must be < 1/L22 = 50"):
        solve(zoo.get("weak-mvi").problem, "ssi-hg", sigma=0.1, tau=60)


def test_continuing_checks_its_steps_too() -> None:
    problem = nonlinear(2).problem()
    state = solve(problem, "ssi-hg", **STEPS, iterations=2).state
    with pytest.raises(StepSizeError, match="sigma must be finite"):
        solve(problem, "ssi-hg", state=state, sigma=-1.0)


def test_numpy_numbers_are_welcome(tmp_path: Path) -> None:
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


def test_row_at_divergence_counts_what_was_done() -> None:
    problem = zoo.get("weak-mvi").problem
    result = solve(problem, "gda", sigma=50, tau=50, iterations=2000, record_every=7)
    assert result.stopped.startswith("diverged")
    assert result.history["w_gradients"][-1] == result.state.w_gradients
