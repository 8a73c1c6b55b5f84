"""Random starts lie in the domain, are drawn by seed, and leave the problem as it is."""

import pytest
import torch

from sihg.minimax import Box, NonNegative, Problem, SquaredL2, measure, random_start, solve, zoo


@pytest.mark.parametrize("name", zoo.names())
def test_every_problem_of_the_zoo_starts_within_its_domain(name: str) -> None:
    problem = zoo.get(name).problem
    w0, delta0 = problem.w0.clone(), problem.delta0.clone()
    started = [random_start(problem, seed) for seed in (0, 1, 0)]
    for one in started:
        assert (one.w0.shape, one.delta0.shape, one.w0.dtype) == (w0.shape, delta0.shape, w0.dtype)
        assert measure.flat_saddle_norm_squared(one, one.w0, one.delta0) < torch.inf
    assert torch.equal(started[0].w0, started[2].w0)
    assert torch.equal(started[0].delta0, started[2].delta0)
    assert not torch.equal(started[0].delta0, started[1].delta0)
    assert torch.equal(problem.w0, w0)
    assert torch.equal(problem.delta0, delta0)


def test_starts_are_uniform_between_bounds() -> None:
    problem = zoo.get("forsaken").problem  # in [-3/2, 3/2]
    starts = torch.stack([torch.cat((p.w0, p.delta0)) for p in (random_start(problem, seed) for seed in range(400))])
    assert bool((starts.abs() <= 1.5).all())
    assert starts.mean(0).abs().max() < 0.15
    assert (starts.std(0) - 1.5 / 3**0.5).abs().max() < 0.08


def test_dicts_and_lists_of_functions_have_domains_of_their_own() -> None:
    def phi(w: dict[str, torch.Tensor], delta: list[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
        return torch.stack([(row * (w["a"].sum() + w["b"].sum())).sum() for row in delta])

    problem = Problem(
        phi,
        {"a": torch.full((2, 3), 5.0), "b": torch.ones(4)},
        [torch.ones(2), torch.ones(3)],
        f={"a": Box(4.0, 6.0), "b": SquaredL2(1.0)},
        g=[NonNegative(), Box(-2.0, -1.0)],
    )
    started = random_start(problem, 3, radius=10.0)
    w, delta = started.w_form(started.w0), started.delta_form(started.delta0)
    assert isinstance(w, dict)
    assert bool(((w["a"] >= 4) & (w["a"] <= 6)).all())
    assert float(w["b"].std()) > 1
    assert bool((delta[0] >= 0).all())
    assert bool(((delta[1] >= -2) & (delta[1] <= -1)).all())


def test_solvers_begin_there() -> None:
    problem = random_start(zoo.get("weak-mvi").problem, 5)
    result = solve(problem, "gda", iterations=0)
    assert torch.equal(result.state.inner.w, problem.w0)
