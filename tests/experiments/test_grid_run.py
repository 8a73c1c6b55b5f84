"""Grids from Python: what is refused, and the same results as `sihg reproduce`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.experiments.grid_run import GridRun, build_grid, run_grid
from sihg.experiments.launcher import Event, JobEnded, JobStarted
from sihg.robust.methods import METHODS
from tests.experiments.grids import SETTINGS, CellsHere
from tests.refused import refused


@pytest.mark.parametrize(
    ("code", "make"),
    [
        ("unknown-data-set", lambda: build_grid("digit")),
        ("unknown-preset", lambda: build_grid("digits", preset="fast")),
        ("unknown-method", lambda: build_grid("digits", methods="pdg")),
        ("names-empty", lambda: build_grid("digits", methods=",")),
        ("names-empty", lambda: build_grid("digits", attacks=[])),
        ("grid-count-range", lambda: build_grid("digits", trials=0)),
        ("grid-count-range", lambda: build_grid("digits", threads=0)),
        ("grid-count-range", lambda: build_grid("digits", samples=0)),
        ("setting-of-the-grid", lambda: build_grid("digits", settings={"seed": 3})),
        ("setting-of-the-grid", lambda: build_grid("digits", settings={"method": "pgd"})),
        ("setting-of-the-grid", lambda: build_grid("digits", settings={"data": "mnist"})),
        ("unknown-setting", lambda: build_grid("digits", settings={"epoch": 3})),
        ("setting-of-another-method", lambda: build_grid("digits", methods="pgd,dat", settings={"tau": 0.1})),
        ("jobs-range", lambda: run_grid(build_grid("digits", out="nowhere"), jobs=0)),
        ("unknown-attack", lambda: run_grid(build_grid("digits", attacks="pdg-20", out="nowhere"))),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    code: str, make: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(code):
        make()
    assert list(tmp_path.iterdir()) == []


def test_each_setting_goes_to_the_methods_that_have_it() -> None:
    given = {"tau": "1/16", "steps": 1, "flip": True, "epochs": 1}
    grid = build_grid("digits", methods=[name for name in METHODS if name != "ibp"], settings=given)
    texts = {name: settings.complete().as_dict() for name, settings in grid.settings.items()}
    assert texts["msi-hg"]["method"]["tau"] == 0.0625  # type: ignore[index, call-overload]
    assert texts["pgd"]["method"]["steps"] == 1  # type: ignore[index, call-overload]
    assert texts["yopo"]["method"]["outer"] == 10  # type: ignore[index, call-overload]
    assert all(settings.flip and settings.epochs == 1 for settings in grid.settings.values())


def test_a_preset_names_its_data_set() -> None:
    by_name, by_preset = build_grid("paper-mnist"), build_grid("mnist", preset="paper-mnist")
    assert by_name == by_preset
    assert by_name.folder == Path("runs/reproduce-paper-mnist")
    assert {(run.data, run.epochs) for run in by_name.settings.values()} == {("mnist", 50)}
    assert build_grid("mnist").folder == Path("runs/reproduce-mnist")


def test_the_number_of_jobs_follows_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.experiments.grid_run.count_cores", lambda: 8)
    assert [GridRun(build_grid("digits", threads=threads)).jobs for threads in (1, 3, 16)] == [8, 2, 1]


def test_a_grid_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = CellsHere(monkeypatch)
    options = {"methods": "pgd", "attacks": "natural", "samples": 20, "out": tmp_path / "g", "settings": SETTINGS}
    events: list[Event] = []
    result = run_grid(build_grid("digits", trials=2, **options), on_event=events.append)  # type: ignore[arg-type]
    assert result.finished
    assert (result.failed, result.interrupted, result.page_error) == ({}, False, "")
    assert result.page == tmp_path / "g" / "index.html"
    assert result.page.is_file()
    (pgd,) = result.methods
    assert (pgd.method, pgd.seeds, len(pgd.accuracy["natural"])) == ("pgd", (0, 1), 2)
    assert events[0] == JobStarted("pgd-s0")
    assert [event.code for event in events if isinstance(event, JobEnded)] == [0, 0]
    again = run_grid(build_grid("digits", trials=2, **options))  # type: ignore[arg-type]
    assert again.methods == result.methods
    assert here.ran == ["pgd-s0", "pgd-s1"]  # nothing was run again


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise InputError("cannot-write-folder", path="here", why="full")

    monkeypatch.setattr("sihg.report.training_report.report_training", fail)
    grid = build_grid("digits", methods="pgd", trials=1, out=tmp_path)
    with grid.opened():
        grid.cells()[0].begin(grid.threads)
    result = GridRun(grid).result()
    assert (result.page, result.page_error) == (
        None,
        "cannot write into the folder here (full): make room there or choose another place",
    )


def test_the_estimate_counts_the_cells_that_are_left(tmp_path: Path) -> None:
    run = GridRun(build_grid("digits", methods="pgd,dat", trials=2, out=tmp_path), jobs=2)
    run.costs = {"pgd": {"training": 3.0, "natural": 1.0}, "dat": {"training": 2.0, "natural": 1.0}}
    assert run.seconds() == 4.0 + 3.0
    assert run.time_left().costs == {cell.name: run.costs[cell.method] for cell in run.cells}
    run.left = run.left[:1]
    assert run.seconds() == 4.0
