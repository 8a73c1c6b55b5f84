"""`compare` in Python does what `sihg solve` does."""

from pathlib import Path

import msgspec
import pytest
import torch

from sihg.minimax import Problem, compare, measure, solve, zoo
from sihg.minimax.comparison import Comparison
from sihg.store.schema import SolveConfig, SolveRow, SolveSummary, read_record
from tests.minimax.problems import nonlinear
from tests.refused import refused


def test_rows_are_those_of_solve() -> None:
    benchmark = zoo.get("ridge", n=2, samples=20)
    assert benchmark.solution is not None
    summary = compare("ridge", ["ssi-hg", "gda"], options={"n": 2, "samples": 20}, iterations=40, seed=3)
    assert (summary.problem, summary.n, summary.dimension_w, summary.dimension_delta) == ("ridge", 2, 10, 20)
    for row in summary.methods:
        result = solve(benchmark.problem, row.method, iterations=40, seed=3)
        assert row.saddle_norm_squared == result.history["saddle_norm_squared"][-1]
        assert row.distance == measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution)
        assert (row.sigma, row.tau, row.source) == (result.steps.sigma, result.steps.tau, result.steps.source)
        assert (row.w_gradients, row.stopped) == (result.state.w_gradients, "40 iterations done")


def test_a_problem_object_is_compared_and_saved(tmp_path: Path) -> None:
    problem = nonlinear(3).problem()
    steps = {"sigma": 0.05, "tau": 0.05}
    summary = compare(problem, ["ssi-hg", "gda", "ssi-hg"], iterations=20, steps=steps, folder=tmp_path / "run")
    assert [row.method for row in summary.methods] == ["ssi-hg", "gda"]
    assert summary == read_record(tmp_path / "run" / "summary.json", SolveSummary)
    for row in summary.methods:
        assert row == read_record(tmp_path / "run" / row.method / "row.json", SolveRow)
    assert read_record(tmp_path / "run" / "config.json", SolveConfig).steps == steps
    with refused("solve-folder-used", path=tmp_path / "run"):
        compare(problem, iterations=20, folder=tmp_path / "run")
    again = compare(problem, ["gda"], iterations=20, steps=steps, folder=tmp_path / "run", overwrite=True)
    assert again.methods[0].saddle_norm_squared == summary.methods[1].saddle_norm_squared


def test_a_comparison_is_resumed_in_python(tmp_path: Path) -> None:
    whole = compare("weak-mvi", ["dsi-hg"], iterations=30, record_every=4)
    compare("weak-mvi", ["dsi-hg"], iterations=11, record_every=4, folder=tmp_path)
    resumed = Comparison.resumed(tmp_path, 30)
    shown: list[int] = []
    row = resumed.run("dsi-hg", lambda done, _note: shown.append(done))
    assert shown == list(range(12, 31))
    assert row.saddle_norm_squared == whole.methods[0].saddle_norm_squared
    assert resumed.summarise().methods == (row,)


def test_a_folder_with_other_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with refused("solve-folder-not-empty", path=tmp_path):
        compare("ridge", folder=tmp_path)


def test_a_users_problem_that_fails_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch, sihg\n"
        "calls = []\n"
        "def phi(w, delta, index):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 60:\n"
        "        raise KeyError('gone')\n"
        "    return delta @ w\n"
        "def make():\n"
        "    return sihg.Problem(phi, torch.ones(2), torch.ones(3, 2), g=sihg.minimax.Box(-1, 1))\n"
    )
    name = f"{tmp_path / 'mine.py'}:make"
    with refused("user-problem-fails", problem=name):
        compare(name, ["gda"], steps={"sigma": 0.1, "tau": 0.1}, iterations=1000)


def test_an_interrupted_method_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(lambda w, d, _: d @ w, torch.ones(2), torch.ones(3, 2))
    (done,) = compare(problem, ["gda"], iterations=3).methods
    row = msgspec.structs.replace(done, stopped="interrupted at iteration 2 of 3")
    ran: list[str] = []

    def run(_self: Comparison, name: str) -> SolveRow:
        ran.append(name)
        return row

    monkeypatch.setattr(Comparison, "run", run)
    compare(problem, ["gda", "mgda"], iterations=3)
    assert ran == ["gda"]


def test_methods_are_a_list_or_text() -> None:
    listed = compare("matrix-game", ["ssi-hg", "gda"], iterations=3)
    assert [row.method for row in compare("matrix-game", "ssi-hg, gda", iterations=3).methods] == [
        row.method for row in listed.methods
    ]
