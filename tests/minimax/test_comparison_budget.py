"""A comparison at equal counts of block gradients, and with several rules for the steps."""

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from sihg.minimax import compare, solve, zoo
from sihg.minimax._solve_folder import identity
from sihg.minimax.comparison import Comparison
from sihg.minimax.history import History
from sihg.store.schema import SolveConfig, SolveRow
from tests.refused import refused

MOST_PER_ITERATION = {"gda": 8, "extragradient": 16, "dsi-hg": 400, "ssi-hg": 105}


def columns(folder: Path, method: str) -> dict[str, list[float]]:
    found = History.load(folder / method / "history.json").columns
    return {name: values for name, values in found.items() if name != "seconds"}


@pytest.mark.parametrize("budget", [1, 400])
def test_each_method_ends_with_the_iteration_that_reaches_the_budget(budget: int) -> None:
    for row in compare("weak-mvi-nonlinear", list(MOST_PER_ITERATION), gradients=budget).methods:
        spent = row.w_gradients + row.delta_gradients
        assert budget <= spent < budget + MOST_PER_ITERATION[row.method]
        assert row.stopped == f"{spent} of {budget} block gradients done"
        one_less = solve(zoo.get("weak-mvi-nonlinear").problem, row.method, iterations=row.iterations - 1).state
        assert one_less.w_gradients + one_less.delta_gradients < budget
        assert row.saddle_norm_squared is not None


def test_iterations_are_a_second_limit() -> None:
    (row,) = compare("weak-mvi", ["gda"], gradients=1000, iterations=7).methods
    assert (row.iterations, row.stopped) == (7, "7 iterations done")


def test_a_resume_to_a_larger_budget_equals_one_run(tmp_path: Path) -> None:
    # Rows lie a 500th of the first budget apart: 2 gradients for 1100 and for 1400.
    methods = ["ssi-hg", "gda", "dsi-hg@adaptive"]
    compare("weak-mvi-nonlinear", methods, gradients=1100, folder=tmp_path / "parts")
    with closing(Comparison.resumed(tmp_path / "parts", gradients=2200)) as resumed:
        assert resumed.total == (2200, "block gradients")
        for name in methods:
            resumed.run(name)
        parts = resumed.summarise()
    whole = Comparison.new("weak-mvi-nonlinear", methods, gradients=1400, folder=tmp_path / "whole")
    with closing(whole):
        whole.config = msgspec.structs.replace(whole.config, gradients=2200, iterations=2200)
        for name in methods:
            whole.run(name)
    for ours, theirs in zip(parts.methods, whole.rows, strict=True):
        assert (ours.iterations, ours.saddle_norm_squared) == (theirs.iterations, theirs.saddle_norm_squared)
        assert columns(tmp_path / "parts", ours.method) == columns(tmp_path / "whole", ours.method)


def test_iterations_alone_replace_the_budget_on_a_resume(tmp_path: Path) -> None:
    first = compare("weak-mvi", "gda", gradients=40, folder=tmp_path).methods[0]
    with closing(Comparison.resumed(tmp_path, 100)) as resumed:
        assert resumed.total == (100, "iterations")
        row = resumed.run("gda")
        summary = resumed.summarise()
    assert first.iterations < row.iterations == 100
    assert "--gradients" not in summary.command
    assert "--iterations 100" in summary.command
    assert row.saddle_norm_squared == compare("weak-mvi", "gda", iterations=100).methods[0].saddle_norm_squared
    # What it records still lies at equal distances in gradients, so a budget may follow.
    with closing(Comparison.resumed(tmp_path, gradients=300)) as resumed:
        assert resumed.run("gda").stopped == "300 of 300 block gradients done"


def test_rows_lie_at_equal_distances_in_gradients(tmp_path: Path) -> None:
    compare("ridge", ["gda", "ssi-hg"], gradients=5000, folder=tmp_path)
    for method, per_iteration in (("gda", 8), ("ssi-hg", 2)):
        history = columns(tmp_path, method)
        spent = [sum(pair) for pair in zip(history["w_gradients"], history["delta_gradients"], strict=True)]
        gaps = [b - a for a, b in pairwise(spent[1:])]
        assert max(gaps) < 5000 // 500 + per_iteration
        assert len(spent) >= 5000 // max(10, per_iteration) * 0.9


def test_steps_by_a_rule_are_those_of_solve() -> None:
    problem = zoo.get("weak-mvi-nonlinear").problem
    adaptive = solve(problem, "ssi-hg", steps="adaptive", iterations=30)
    by_label = compare("weak-mvi-nonlinear", "ssi-hg,ssi-hg@adaptive", iterations=30).methods
    by_rule = compare("weak-mvi-nonlinear", "ssi-hg,ssi-hg@theorem", iterations=30, steps="adaptive").methods
    values: list[float | None] = [row.saddle_norm_squared for row in (*by_label, *by_rule)]
    assert values[1] == values[2] == adaptive.history["saddle_norm_squared"][-1]
    assert values[0] == values[3] == solve(problem, "ssi-hg", iterations=30).history["saddle_norm_squared"][-1]
    assert by_label[0].bound is not None
    assert by_label[1].bound is by_rule[0].bound is None


def test_a_wrong_budget_or_rule_is_refused(tmp_path: Path) -> None:
    with refused("gradients-range", gradients=0):
        compare("weak-mvi", gradients=0)
    with refused("unknown-steps", name="quickly"):
        compare("weak-mvi", "gda@quickly")
    compare("weak-mvi", ["gda"], iterations=3, folder=tmp_path)
    with refused("resume-without-gradients", gradients=10):
        Comparison.resumed(tmp_path, gradients=10)


def test_settings_of_before_budgets_have_the_same_identity() -> None:
    config = SolveConfig(
        problem="ridge", options={}, methods=("gda",), iterations=5, seed=0, tolerance=None, record_every=1, steps={}
    )
    # as `identity` was computed when SolveConfig had no rule and no budget
    assert identity(config) == "cb8d241f0f686dadda9f66b8bc56d77a7d02ae3d121f22af72819ba71266971c"
    assert identity(msgspec.structs.replace(config, gradients=9, iterations=9)) == identity(config)
    assert identity(msgspec.structs.replace(config, step_rule="adaptive")) != identity(config)


def test_a_finished_row_is_taken_from_the_folder(tmp_path: Path) -> None:
    compare("weak-mvi", ["gda"], gradients=50, folder=tmp_path)
    shown: list[int] = []
    with closing(Comparison.resumed(tmp_path)) as resumed:
        row: SolveRow = resumed.run("gda", lambda done, _note: shown.append(done))
    assert (row.stopped, shown) == ("50 of 50 block gradients done", [])


def test_adaptive_steps_that_diverge_are_no_error() -> None:
    rows = compare("lower-bound", "mgda@adaptive,extragradient@adaptive", iterations=1600, record_every=1600).methods
    assert all(row.stopped.startswith("diverged at iteration ") for row in rows)


def test_a_budget_that_the_trials_of_auto_use_up_is_refused() -> None:
    with refused("auto-budget", gradients=400) as caught:
        compare("weak-mvi", "eg+,auto", gradients=400)
    least = caught.value.values["least"]
    assert isinstance(least, int)
    with refused("auto-budget", least=least):
        compare("weak-mvi", "auto", gradients=least - 1)
    (row,) = compare("weak-mvi", "auto", gradients=least).methods
    assert row.w_gradients + row.delta_gradients == least + 1  # one iteration of extragradient or the like
