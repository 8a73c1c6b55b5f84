"""`compare` in Python does what `sihg solve` does."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from sihg.errors import InputError
from sihg.minimax import Problem, compare, measure, solve, zoo
from sihg.minimax._load_benchmark import Source
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
    with closing(Comparison.resumed(tmp_path, 30)) as resumed:
        shown: list[int] = []
        row = resumed.run("dsi-hg", lambda done, _note: shown.append(done))
        assert shown == list(range(12, 31))
        assert row.saddle_norm_squared == whole.methods[0].saddle_norm_squared
        assert resumed.summarise().methods == (row,)


def test_a_benchmark_is_resumed_with_its_options(tmp_path: Path) -> None:
    whole = compare("weak-mvi", "extragradient", options={"b": -0.5}, iterations=20, record_every=1)
    first = compare(zoo.get("weak-mvi", b=-0.5), "extragradient", iterations=10, record_every=1, folder=tmp_path)
    assert (first.problem, first.options) == ("weak-mvi", {"b": -0.5})
    assert "--set b=-0.5" in first.command
    assert resume(tmp_path, iterations=20).saddle_norm_squared == whole.methods[0].saddle_norm_squared


@pytest.mark.parametrize(
    "problem",
    [
        zoo.get("weak-mvi").problem,
        replace(zoo.get("weak-mvi"), problem=zoo.get("weak-mvi", b=-0.5).problem),
        zoo.get("matrix-game", payoff=torch.tensor([[1.0, -1.0], [-1.0, 1.0]])),
    ],
)
def test_a_problem_that_no_command_builds_is_not_resumed(problem: Source, tmp_path: Path) -> None:
    summary = compare(problem, "gda", iterations=3, folder=tmp_path)
    assert summary.problem.endswith(" (given in Python)")
    assert summary.command.startswith("sihg solve PROBLEM ")
    assert summary.problem in summary.command.partition("  # ")[2]
    with refused("resume-given-in-python", path=tmp_path, problem=summary.problem):
        Comparison.resumed(tmp_path, 5)


def test_a_mistyped_setting_is_refused() -> None:
    with refused("unknown-setting", name="itertions"):
        compare("weak-mvi", "eg+", itertions=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "code"),
    [("gradients", "gradients-range"), ("record_every", "compare-record-every")],
)
@pytest.mark.parametrize("value", [100.5, -1, "a", True])
def test_counts_are_integers(name: str, code: str, value: object) -> None:
    with refused(code, **{name: value}):
        compare("weak-mvi", "gda", **{name: value})  # type: ignore[arg-type]


def test_options_are_for_names() -> None:
    with refused("options-of-object", name="b"):
        compare(zoo.get("weak-mvi"), "gda", options={"b": -0.5})


def resume(folder: Path, **more: Any) -> SolveRow:
    """Continue the first method of a comparison."""
    with closing(Comparison.resumed(folder, **more)) as resumed:
        return resumed.run(resumed.config.methods[0])


def test_a_changed_byte_in_any_file_is_noticed(tmp_path: Path) -> None:
    compare("weak-mvi", ["dsi-hg"], iterations=2, folder=tmp_path)
    names = ("config.json", "dsi-hg/row.json", "dsi-hg/state.safetensors", "dsi-hg/history.json")
    for file in (tmp_path / name for name in (*names, "dsi-hg/trajectory.csv")):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
        content = before[file]
        for place in (0, len(content) // 3, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(InputError) as caught:
                resume(tmp_path, iterations=3)
            assert str(file) in str(caught.value), place
            for path, kept in before.items():
                path.write_bytes(kept)
    assert resume(tmp_path, iterations=3).iterations == 3


def test_points_lost_at_the_end_of_a_trajectory_are_noticed(tmp_path: Path) -> None:
    compare("weak-mvi", ["dsi-hg"], iterations=5, folder=tmp_path)
    file = tmp_path / "dsi-hg" / "trajectory.csv"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    with refused("trajectory-unreadable", path=file):
        resume(tmp_path, iterations=6)


def test_rows_of_other_settings_are_refused(tmp_path: Path) -> None:
    for name, seed in {"mine": 1, "other": 2}.items():
        compare("ridge", ["ssi-hg", "gda"], iterations=3, seed=seed, folder=tmp_path / name)
    row = tmp_path / "mine" / "ssi-hg" / "row.json"
    row.write_bytes((tmp_path / "other" / "ssi-hg" / "row.json").read_bytes())
    with refused("solve-other-settings", path=row):
        resume(tmp_path / "mine")
    compare("ridge", ["ssi-hg"], iterations=5, seed=1, folder=tmp_path / "longer")
    row.write_bytes((tmp_path / "longer" / "ssi-hg" / "row.json").read_bytes())
    assert resume(tmp_path / "mine").iterations == 5  # of the same settings, with more iterations


def test_a_second_comparison_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with closing(Comparison.new("weak-mvi", ["gda"], iterations=3, folder=folder)) as first:
        for change in (lambda: resume(folder), lambda: compare("weak-mvi", folder=folder, overwrite=True)):
            with refused("folder-in-use", folder=folder):
                change()
        first.run("gda")
    assert resume(folder).stopped == "3 iterations done"


def test_a_folder_that_is_replaced_is_not_written_to(tmp_path: Path) -> None:
    with closing(Comparison.new("weak-mvi", ["gda"], iterations=3, folder=tmp_path / "run")) as first:
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()
        with refused("folder-moved", path=tmp_path / "run"):
            first.run("gda")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_foreign_folder_runs_no_code(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "import torch, sihg\n"
        "from pathlib import Path\n"
        "def make():\n"
        "    Path(__file__).with_name('ran').touch()\n"
        "    return sihg.Problem(lambda w, d, i: d @ w, torch.ones(2), torch.ones(3, 2))\n"
    )
    name, ran = f"{code}:make", tmp_path / "ran"
    compare(name, ["gda"], iterations=3, steps={"sigma": 0.1, "tau": 0.1}, folder=tmp_path / "mine")
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert resume(tmp_path / "moved", iterations=4).iterations == 4  # still the user's own
    copy = Path(shutil.copytree(tmp_path / "moved", tmp_path / "copy"))
    ran.unlink()
    with refused("foreign-code", folder=copy, settings=copy / "config.json") as caught:
        resume(copy, iterations=5)
    assert caught.value.values["code"] == f"problem {name}"
    assert not ran.exists()
    assert resume(copy, iterations=5, trust=True).iterations == 5
    assert ran.exists()


def test_a_foreign_folder_with_a_problem_of_the_zoo_is_resumed(tmp_path: Path) -> None:
    compare("ridge", ["gda"], iterations=3, folder=tmp_path / "mine")
    copy = Path(shutil.copytree(tmp_path / "mine", tmp_path / "copy"))
    assert resume(copy, iterations=4).iterations == 4


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
