"""Ratios and shares of a performance profile, worked out by hand."""

from math import inf

import pytest

from sihg.store.profile_records import (
    ProfileCell,
    ProfileProblem,
    ProfileRun,
    ProfileSettings,
    SolverProfile,
)
from sihg.store.schema import Environment

# Costs of methods a, b and c on three problems from two starts each; None: not solved.
COSTS: dict[str, dict[str, list[int | None]]] = {
    "easy": {"a": [10, 10], "b": [20, 5], "c": [100, 100]},
    "hard": {"a": [None, 40], "b": [30, 80], "c": [None, None]},
    "never": {"a": [None, None], "b": [None, None], "c": [None, None]},
}


def made(costs: dict[str, dict[str, list[int | None]]] = COSTS, starts: int = 2) -> SolverProfile:
    """A profile of these costs."""
    return SolverProfile(
        settings=ProfileSettings(passes=50, reduction=1e-3, tolerance=0.0, starts=starts, seed=0),
        problems=tuple(
            ProfileProblem(name=name, about="", n=n, dimension_w=1, dimension_delta=n, budget=100 * n)
            for n, name in enumerate(costs, start=1)
        ),
        methods=tuple(next(iter(costs.values()))),
        cells=tuple(cell(problem, method, own) for problem, row in costs.items() for method, own in row.items()),
        command="sihg solve ...",
        environment=Environment(),
    )


def cell(problem: str, method: str, costs: list[int | None]) -> ProfileCell:
    """A cell with a run per cost."""
    runs = tuple(
        ProfileRun(
            start=start,
            outcome="budget spent" if cost is None else "solved",
            cost=cost,
            spent=cost or 100,
            iterations=3,
            start_norm=1.0,
            end_norm=1.0 if cost is None else 1e-4,
        )
        for start, cost in enumerate(costs)
    )
    return ProfileCell(problem=problem, method=method, budget=100, settings="", source="given", runs=runs)


def test_ratios_are_to_the_best_of_each_task() -> None:
    found = made()
    assert found.ratios("a") == [1, 2, inf, 1, inf, inf]
    assert found.ratios("b") == [2, 1, 1, 2, inf, inf]
    assert found.ratios("c") == [10, 20, inf, inf, inf, inf]
    assert found.ratios("a", ["hard"]) == [inf, 1]


def test_tasks_that_nobody_solves_count_as_failures() -> None:
    found = made()
    assert [found.share("b", factor) for factor in (1, 1.99, 2, inf)] == pytest.approx([2 / 6, 2 / 6, 4 / 6, 4 / 6])
    assert found.share("c", inf) == pytest.approx(2 / 6)
    assert found.share("a", 1, ["easy"]) == 0.5
    assert found.share("a", 1, ["none of these"]) == 0.0


def test_a_cell_that_was_not_computed_has_failed() -> None:
    found = made({"easy": {"a": [], "b": [4, 8]}})
    assert found.ratios("a") == [inf, inf]
    assert found.ratios("b") == [1, 1]


def test_a_start_that_is_a_solution_costs_nothing() -> None:
    assert made({"easy": {"a": [0], "b": [3]}}, starts=0).ratios("b") == [3]


def test_shares_and_medians_of_a_cell() -> None:
    one = cell("hard", "a", [None, 40, 10, 30])
    assert (one.solved, one.median_cost) == (0.75, 30.0)
    assert (cell("hard", "a", [None]).solved, cell("hard", "a", [None]).median_cost) == (0.0, inf)
