"""Performance profiles: costs are those of solve, budgets are kept, a folder refuses files of other profiles."""

import json
from collections.abc import Iterator
from contextlib import closing
from math import ceil, inf
from pathlib import Path

import pytest
import torch

from sihg.minimax import L1, Box, Problem, profile, solve, zoo
from sihg.minimax._load_benchmark import Source
from sihg.minimax.performance_profile import ProfileComputation
from sihg.minimax.solve import Run
from sihg.store.profile_records import ProfileCell
from tests.refused import refused


def only(cell: ProfileCell | None) -> ProfileCell:
    assert cell is not None
    return cell


@pytest.mark.parametrize("method", ["eg+", "dsi-hg", "gda@adaptive"])
def test_a_cost_is_the_count_at_the_first_check_at_which_the_norm_has_fallen(method: str) -> None:
    (run,) = only(profile(["quadratic"], [method], passes=500, reduction=1e-2).cell("quadratic", method)).runs
    name, _, rule = method.partition("@")
    problem = zoo.get("quadratic").problem
    history = solve(problem, name, iterations=run.iterations, record_every=1, steps=rule or "theorem").history
    norms = [value**0.5 for value in history["saddle_norm_squared"]]
    spent = [int(a + b) for a, b in zip(history["w_gradients"], history["delta_gradients"], strict=True)]
    checks, following = [], 0
    for k in range(1, len(spent)):
        if spent[k] >= following:
            checks.append(k)
            following = ceil(1.02 * spent[k])
    solved = [k for k in checks if norms[k] <= 1e-2 * norms[0]]
    assert solved[0] == checks[-1] == run.iterations
    assert (run.outcome, run.cost, run.spent) == ("solved", spent[-1], spent[-1])
    assert (run.start_norm, run.end_norm) == (norms[0], norms[-1])


def test_failures_have_their_reasons() -> None:
    known = {"L11": 0.01, "L12": 0.01, "L22": 0.01}  # far too small
    one = torch.ones(1, dtype=torch.float64)
    steep = Problem(lambda w, d, _: (w**3 * d).sum(1), one, one[None], constants=known)
    problems: dict[str, Source] = {"steep": steep, "game": "matrix-game", "mvi": zoo.get("weak-mvi")}
    found = profile(problems, ["gda", "spdhg"], passes=20)
    outcomes = {(cell.problem, cell.method): cell.runs[0] for cell in found.cells}
    assert outcomes["steep", "spdhg"].outcome == "cannot solve it"
    assert "bilinear" in outcomes["steep", "spdhg"].reason
    assert outcomes["steep", "gda"].outcome == "gave up"
    assert outcomes["steep", "gda"].reason.startswith("diverged at iteration ")
    assert outcomes["game", "spdhg"].outcome == "solved"
    assert outcomes["mvi", "gda"].outcome == "budget spent"
    assert outcomes["mvi", "gda"].spent == 2 * 20
    assert found.ratios("gda") == [inf, inf, inf]
    assert found.share("spdhg", inf) == found.share("spdhg", 1.0) == 1 / 3


def test_an_absolute_tolerance_counts_where_it_is_larger() -> None:
    norm = only(profile(["weak-mvi"], ["eg+"], passes=5).cell("weak-mvi", "eg+")).runs[0].start_norm
    (run,) = only(profile(["weak-mvi"], ["eg+"], passes=5, tolerance=2 * norm).cell("weak-mvi", "eg+")).runs
    assert (run.outcome, run.cost, run.iterations) == ("solved", 0, 0)


def test_random_starts_are_tasks_of_their_own() -> None:
    found = profile(["ratio-game", "weak-mvi"], ["gda", "eg+"], passes=100, starts=3)
    cell = only(found.cell("weak-mvi", "eg+"))
    assert [run.start for run in cell.runs] == [0, 1, 2]
    assert len({run.start_norm for run in cell.runs}) == 3
    assert len(found.ratios("eg+")) == 6
    assert found == profile(["ratio-game", "weak-mvi"], ["gda", "eg+"], passes=100, starts=3)
    assert cell.solved == sum(run.outcome == "solved" for run in cell.runs) / 3


def test_a_folder_continues_and_takes_more_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = profile(["weak-mvi", "matrix-game"], ["gda", "eg+"], passes=20)
    with closing(ProfileComputation(["weak-mvi"], ["gda"], passes=20, folder=tmp_path)) as first:
        cell = first.run("weak-mvi", "gda")
        first.summarise()
    monkeypatch.setattr("sihg.minimax._profile_cell.MAX_WARNINGS", 0)
    again = profile(["weak-mvi", "matrix-game"], ["gda", "eg+"], passes=20, folder=tmp_path)
    assert again.cells[0] == cell
    assert [c.runs for c in again.cells] == [c.runs for c in whole.cells]
    with refused("profile-other-settings", path=tmp_path):
        profile(["weak-mvi"], ["gda"], passes=21, folder=tmp_path)


def test_a_cell_of_another_problem_of_that_name_is_refused(tmp_path: Path) -> None:
    one, other = zoo.get("ridge", n=2, samples=20), zoo.get("ridge", n=4, samples=20)
    profile({"mine": one}, ["gda"], passes=5, folder=tmp_path)
    with refused("profile-other-cell", path=tmp_path / "cells" / "mine" / "gda.json"):
        profile({"mine": other}, ["gda"], passes=5, folder=tmp_path)


def test_an_interrupt_keeps_the_cells_that_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Run.iterate

    def stop_second(run: Run) -> Iterator[None]:
        yield from real(run)
        if run.start.steps.source.startswith("step below"):
            run.stopped = "interrupted at iteration 1"

    monkeypatch.setattr(Run, "iterate", stop_second)
    with pytest.raises(KeyboardInterrupt):
        profile(["matrix-game"], ["gda", "eg+"], passes=3, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("cells/*/*")) == ["gda.json"]


def test_names_of_a_users_own_problems_become_names_of_files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch, sihg\n"
        "def make():\n"
        "    return sihg.Problem(lambda w, d, i: d @ w, torch.ones(2), torch.ones(3, 2))\n"
    )
    name = f"{tmp_path / 'mine.py'}:make"
    found = profile([name], ["gda"], passes=3, folder=tmp_path / "out")
    assert found.problems[0].name == name
    (cell,) = (tmp_path / "out" / "cells").glob("*/*.json")
    assert cell.name == "gda.json"
    assert json.loads(cell.read_text())["problem"] == name


def changed(what: str) -> Problem:
    """Return a problem, or one that differs in what its shapes, classes and start do not tell."""
    weight = 2.0 if what == "phi" else 1.0
    return Problem(
        lambda w, d, _: weight * d @ w,
        torch.ones(2, dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.float64),
        f=L1(0.2 if what == "f" else 0.1),
        g=Box(-1.0, 3.0 if what == "g" else 2.0),
    )


@pytest.mark.parametrize("what", ["phi", "f", "g"])
def test_a_changed_problem_does_not_take_the_cells_of_the_old_one(what: str, tmp_path: Path) -> None:
    first = profile({"x": changed("")}, ["gda"], passes=5, folder=tmp_path)
    assert profile({"x": changed("")}, ["gda"], passes=5, folder=tmp_path).cells == first.cells
    with refused("profile-other-cell", path=tmp_path / "cells" / "x" / "gda.json"):
        profile({"x": changed(what)}, ["gda"], passes=5, folder=tmp_path)


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    for passes, starts in [(0, 0), (1.5, 0), ("a", 0), (1, 1.5), (1, -1)]:
        with refused("profile-counts", passes=passes, starts=starts):
            profile(["weak-mvi"], passes=passes, starts=starts)  # type: ignore[arg-type]
    with refused("unknown-setting", name="pases"):
        profile(["weak-mvi"], pases=3)  # type: ignore[call-arg]
    with refused("profile-reduction", reduction=1.5):
        profile(["weak-mvi"], reduction=1.5)
    with refused("tolerance-range", tolerance=-1.0):
        profile(["weak-mvi"], tolerance=-1.0)
    with refused("unknown-method", name="nothing"):
        profile(["weak-mvi"], ["nothing"])
    with refused("unknown-steps", name="soon"):
        profile(["weak-mvi"], ["gda@soon"])
    with refused("unknown-problem", name="nothing"):
        profile("nothing")
    with refused("profile-same-name", name="weak-mvi"):
        profile(["weak-mvi", zoo.get("weak-mvi")], ["gda"])
    outside = Problem(lambda w, d, _: d @ w, torch.ones(2), torch.ones(1, 2), f=Box(2.0, 3.0))
    with refused("profile-start", problem="outside"):
        profile({"outside": outside}, ["gda"], passes=3)
    (tmp_path / "notes.txt").write_text("mine")
    with refused("profile-folder-not-empty", path=tmp_path):
        profile(["weak-mvi"], ["gda"], folder=tmp_path)
