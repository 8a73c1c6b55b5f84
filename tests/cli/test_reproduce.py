"""`sihg reproduce` as people use it, with cells in this process."""

import csv
import json
import shutil
import signal
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sihg.experiments.launcher import Event, Job, JobEnded, JobStarted, Launcher
from sihg.store.run_folder import GRID, locked
from sihg.store.schema import write_json
from sihg.store.trust import mark_own
from tests.experiments.grids import CELLS, TINY, CellsHere, results, run, same
from tests.robust.small import records


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line of an error."""
    assert run("reproduce", *words) == 2
    told = ("settings: ", "measuring ")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(told)]
    return line


@pytest.fixture(autouse=True)
def _page_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing, which takes most of the time; tests/experiments/test_grid_run.py looks at the page."""
    monkeypatch.setattr(
        "sihg.report.training_report.report_training", lambda folder: (folder / "index.html").write_text("a page")
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> CellsHere:
    """Run cells in this process."""
    return CellsHere(monkeypatch)


@pytest.fixture
def done(whole: Path, tmp_path: Path) -> Path:
    """A copy of the finished grid, as if it had been made there."""
    copy = Path(shutil.copytree(whole, tmp_path / "g"))
    mark_own(copy, (copy / GRID).read_bytes())
    return copy


def test_the_table_and_the_json_by_hand(done: Path, here: CellsHere, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "digits", *TINY, "--out", done, "--json") == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert here.ran == []  # all was done
    assert "measuring" not in captured.err
    assert [row["method"] for row in said["methods"]] == ["pgd", "msi-hg"]
    for row in said["methods"]:
        shares, passes = [], []
        for seed in (0, 1):
            cell = done / f"{row['method']}-s{seed}"
            (record,) = cell.glob("evaluation/*.json")
            shares += [a["accuracy"] for a in json.loads(record.read_text())["attacks"] if a["attack"] == "pgd-5"]
            with (cell / "metrics.csv").open() as file:
                passes.append(float(list(csv.DictReader(file))[-1]["passes"]))
        robust = row["accuracy"]["pgd-5"]
        assert robust["values"] == shares
        assert robust["mean"] == pytest.approx(sum(shares) / 2)
        assert (robust["low"], robust["high"], robust["deviation"]) == (min(shares), max(shares), None)
        assert row["passes"]["values"] == passes
    assert (said["failed"], said["finished"], said["report"]) == ({}, True, str(done / "index.html"))
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    captured = capsys.readouterr()
    for row in said["methods"]:
        natural = [100 * value for value in row["accuracy"]["natural"]["values"]]
        shown = f"{statistics.mean(natural):.2f} ({min(natural):.2f} - {max(natural):.2f})"
        (line,) = [line for line in captured.out.splitlines() if f"│ {row['method']} " in line]
        assert shown in line
        assert "│ 2 │" in line
    assert "digits, linf eps 0.25, 60 test samples" in captured.out
    assert f"report: {done / 'index.html'}" in captured.err
    assert "--attacks standard" in captured.err
    assert "--attacks pgd-20 --curve 0:0.5:9\n" in captured.err
    (record,) = (done / "pgd-s0").glob("evaluation/*.json")
    shutil.copy(record, record.with_name("last_test_standard.json"))
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert "--attacks standard" not in capsys.readouterr().err  # it was done
    shutil.copy(record, record.with_name("last_test_pgd-20_curve-0-0.5-9.json"))
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert "--curve" not in capsys.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("level", "code"), [("warning", 0), ("error", 1)])
def test_failed_checks_are_printed_and_an_error_fails(
    level: str, code: int, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (done / "pgd-s1").glob("evaluation/*.json")
    record = json.loads(path.read_text())
    record["checks"] = [{"name": "ball", "result": level, "message": "a point is outside"}]
    write_json(path, record)
    assert run("reproduce", "digits", *TINY, "--out", done) == code
    assert f"{level} (pgd-s1): a point is outside\n" in capsys.readouterr().err


def test_a_grid_of_somebody_else_needs_trust(
    whole: Path, tmp_path: Path, here: CellsHere, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "g"))
    for listing in ((), ("--list",)):
        assert refused(capsys, "digits", *TINY, "--out", copy, *listing).endswith("[foreign-grid]")
        assert run("reproduce", "digits", *TINY, "--out", copy, *listing, "--trust") == 0
        capsys.readouterr()
    assert here.ran == []


def test_cells_are_ordinary_runs(done: Path) -> None:
    words = (*TINY[TINY.index("--set") :], "--threads", "1")
    alone = done.parent / "alone"
    assert run("train", "--data", "digits", "--method", "pgd", "--seed", "1", *words, "--out", alone) == 0
    assert records(alone) == records(done / "pgd-s1")


@pytest.mark.parametrize("seed", [0, 1])
def test_an_interrupted_grid_continues(
    seed: int,
    done: Path,
    whole: Path,
    here: CellsHere,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in CELLS[2 * seed :]:
        shutil.rmtree(done / name)
    steps = iter(range(1000))
    here.on_step = lambda: signal.raise_signal(signal.SIGINT) if next(steps) == 2 else None
    assert run("reproduce", "digits", *TINY, "--out", done) == 130
    captured = capsys.readouterr()
    assert f"{2 * seed} of 4 are done" in captured.err
    assert "to continue: " in captured.err
    assert ("1 of 2" if seed else "0 of 2") in captured.out
    here.ran.clear()
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert here.ran == CELLS[2 * seed :]
    assert any("from step 4 of 4" in line for line in here.lines)
    assert same(results(done), results(whole))


@pytest.mark.filterwarnings("ignore::sihg.experiments.grid.RecordWarning")  # of the damage
def test_a_damaged_record_is_made_again(done: Path, whole: Path, here: CellsHere) -> None:
    (record,) = (done / "pgd-s1").glob("evaluation/*.json")
    record.write_text(record.read_text()[:100])
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert here.ran == ["pgd-s1"]
    assert same(results(done), results(whole))


def test_a_failed_cell_is_reported_and_the_others_run(
    done: Path, whole: Path, here: CellsHere, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in CELLS[1:]:
        shutil.rmtree(done / name)
    (done / "pgd-s1").mkdir()
    (done / "pgd-s1" / "thesis.tex").write_text("x")
    assert run("reproduce", "digits", *TINY, "--out", done, "--json") == 1
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert here.ran == CELLS[1:]
    assert (list(said["failed"]), said["finished"]) == (["pgd-s1"], False)
    assert [row["seeds"] for row in said["methods"]] == [[0], [0, 1]]
    assert f"failed: pgd-s1: {done / 'pgd-s1'} is not empty (it has thesis.tex)" in captured.err
    assert f"; its whole output: {done / 'pgd-s1' / 'output.log'}\n" in captured.err
    assert "1 of 4 cells failed: remove the cause, then the same command continues" in captured.err
    (done / "pgd-s1" / "thesis.tex").unlink()
    here.ran.clear()
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert here.ran == ["pgd-s1"]
    assert same(results(done), results(whole))


def test_a_cell_that_was_stopped_from_outside_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(_: Launcher, jobs: Sequence[Job]) -> Iterator[Event]:
        for job in jobs:
            yield JobStarted(job.name)
            yield JobEnded(job.name, 130, 0.1, "sihg: interrupted")

    monkeypatch.setattr(Launcher, "run", ended)
    assert run("reproduce", "digits", *TINY, "--out", tmp_path / "g", "--json") == 1
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert (list(said["failed"]), said["finished"]) == (CELLS, False)
    assert "4 of 4 cells failed" in captured.err


def test_trials_and_methods_may_be_added(done: Path, here: CellsHere, capsys: pytest.CaptureFixture[str]) -> None:
    before = results(done)
    assert run("reproduce", "digits", *TINY, "--out", done, "--methods", "natural,pgd", "--trials", "3", "--json") == 0
    assert here.ran == ["natural-s0", "natural-s1", "natural-s2", "pgd-s2"]
    said = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["seeds"]) for row in said["methods"]] == [("natural", [0, 1, 2]), ("pgd", [0, 1, 2])]
    now = results(done)
    assert same({cell: now[cell] for cell in before}, before)
    assert run("reproduce", "digits", *TINY, "--out", done) == 0  # and what was asked first is still there
    assert len(here.ran) == 4


def test_other_settings_are_refused(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (("--set", "epochs=3"), "methods.pgd.epochs = 2 (here 3)"),
        (("--samples", "61"), "test_samples = 60 (here 61)"),
        (("--attacks", "natural"), "attacks = ['natural', 'pgd-5'] (here ['natural'])"),
        (("--threads", "2"), "threads = 1 (here 2)"),
        (("--tau", "0.1"), "methods.msi-hg.method.tau = 0.125 (here 0.1)"),
    ):
        for listing in ((), ("--list",)):
            said = refused(capsys, "digits", *TINY, "--out", done, *words, *listing)
            assert message in said
            assert "give the same settings, or choose another --out" in said
    with locked(done):
        assert "is in use by process" in refused(capsys, "digits", *TINY, "--out", done)


def test_the_list_of_what_would_run(
    done: Path, here: CellsHere, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    words = ("reproduce", "digits", *TINY, "--trials", "3", "--jobs", "2", "--list")
    assert run(*words, "--out", done, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    cells = {one["cell"]: one for one in said["cells"]}
    assert {name for name, one in cells.items() if one["state"] == "done"} == set(CELLS)
    assert all(cells[name]["seconds"] == 0 for name in CELLS)
    left = [cells[name] for name in ("pgd-s2", "msi-hg-s2")]
    for one in left:
        assert one["state"] == "to do"
        assert list(one["of"]) == ["starting", "training", "natural", "pgd-5"]
        assert one["seconds"] == pytest.approx(sum(one["of"].values()))
        assert one["seconds"] > 0
    assert said["seconds"] == pytest.approx(max(one["seconds"] for one in left))
    assert run(*words, "--out", done) == 0
    out = capsys.readouterr().out
    assert "about" in out
    assert "in all with 2 at a time" in out
    assert run(*words, "--out", tmp_path / "new") == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert here.ran == []


def test_the_list_shows_cells_that_are_half_done(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(done / "pgd-s0" / "evaluation")
    lines = (done / "pgd-s1" / "metrics.csv").read_text().splitlines(keepends=True)
    (done / "pgd-s1" / "metrics.csv").write_text("".join(lines[:2]))
    assert run("reproduce", "digits", *TINY, "--out", done, "--list", "--json") == 0
    pgd, _, other, _ = json.loads(capsys.readouterr().out)["cells"]
    assert (pgd["state"], other["state"]) == ("trained", "1 of 2 epochs")
    training = pgd["of"].pop("training")
    assert pgd["seconds"] == pytest.approx(sum(pgd["of"].values()))
    assert other["seconds"] == pytest.approx(training / 2 + pgd["seconds"])


MISTAKES: dict[str, tuple[str, ...]] = {
    "unknown-data-set": ("digit",),
    "unknown-method": ("digits", "--methods", "pdg"),
    "names-empty": ("digits", "--attacks", ""),
    "grid-count-range": ("digits", "--trials", "0"),
    "samples-range": ("digits", "--samples", "398"),
    "setting-of-another-method": ("digits", "--methods", "pgd,dat", "--tau", "0.1"),
    "set-not-key-value": ("digits", "--set", "x"),
    "usage": ("digits", "--lr"),
}


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_are_one_line_and_leave_nothing(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *MISTAKES[code], "--out", tmp_path / "g").endswith(f" [{code}]")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--trials", "1.5"), ("--trials", "-1"), ("--jobs", "two"), ("--samples", "x")])
def test_numbers_are_checked_by_the_parser(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "digits", *words) == 2
    assert f"{words[0]}: {words[1]!r} is not an integer >= 0" in capsys.readouterr().err


def test_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "mnist", "--data-dir", tmp_path / "none", "--out", tmp_path / "g")
    assert "sihg data get mnist" in said
    assert list(tmp_path.iterdir()) == []


def test_a_setting_goes_to_the_methods_that_have_it(
    tmp_path: Path, here: CellsHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        *("--methods", "pgd,msi-hg,yopo", "--trials", "1", "--samples", "20"),
        *("--attacks", "natural", "--epochs", "1", "--set", "samples=60", "--validation", "10", "--width", "1/4"),
    )
    assert run("reproduce", "digits", *words, "--tau", "1/16", "--steps", "1", "--flip") == 0
    out = tmp_path / "runs" / "reproduce-digits"
    assert len(here.ran) == 3
    texts = {path.parent.name: path.read_text() for path in out.glob("*/config.toml")}
    assert "tau = 0.0625" in texts["msi-hg-s0"]
    assert "\nsteps = 1\n" in texts["pgd-s0"]
    assert "\nouter = 10\n" in texts["yopo-s0"]
    assert all("\nflip = true\n" in text for text in texts.values())
