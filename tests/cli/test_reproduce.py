"""`sihg reproduce` as people use it. But for the tests at the end, cells run in this process, which is quicker."""

import csv
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from sihg.cli.main import main
from sihg.cli.running import TrainingOutput
from sihg.experiments.launcher import Event, Job, JobEnded, JobStarted, Launcher
from sihg.robust.methods import METHODS
from sihg.robust.training.events import Event as TrainingEvent
from sihg.robust.training.events import StepDone
from sihg.store.lock import locked
from tests.robust.small import records

ROOT = Path(__file__).parents[2]
TINY = (
    *("--methods", "pgd,msi-hg", "--trials", "2", "--attacks", "natural,pgd-5", "--samples", "60", "--epochs", "2"),
    *("--set", "samples=120", "--validation", "20", "--steps", "2", "--width", "1/4"),
)
CELLS = ["pgd-s0", "msi-hg-s0", "pgd-s1", "msi-hg-s1"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line of an error."""
    assert run("reproduce", *words) == 2
    told = ("settings: ", "measuring ")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(told)]
    return line


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run cells in this process, one after another; gives the names of those that were."""
    ran: list[str] = []

    def run_here(self: Launcher, jobs: Sequence[Job]) -> Iterator[Event]:
        for job in jobs:
            ran.append(job.name)
            folder, *commands = job.command[3:]
            train, resume, evaluate = map(json.loads, commands)
            yield JobStarted(job.name)
            with redirect_stdout(sys.stderr):
                code = main(resume if (Path(folder) / "config.toml").is_file() else train) or main(evaluate)
            yield JobEnded(job.name, code, 1.0, "sihg: error: a reason" if code else "")
            self.interrupted = code == 130
            if self.interrupted:
                return

    monkeypatch.setattr(Launcher, "run", run_here)
    return ran


def results(out: Path) -> dict[str, Any]:
    """All that the cells of a folder have computed, but for the seconds."""
    found: dict[str, Any] = {}
    for cell in sorted(path.parent for path in out.glob("*/config.toml")):
        (record,) = cell.glob("evaluation/*.json")
        attacks = json.loads(record.read_text())["attacks"]
        last = max(cell.glob("checkpoints/last-*"))
        found[cell.name] = {
            **records(cell),
            "config": (cell / "config.toml").read_bytes(),
            "weights": (last / "weights.safetensors").read_bytes(),
            "attacks": [{key: value for key, value in row.items() if key != "seconds"} for row in attacks],
        }
    return found


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two grids came to the same, bit by bit."""
    return found.keys() == expected.keys() and all(found[cell] == expected[cell] for cell in expected)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished grid."""
    out = tmp_path_factory.mktemp("whole") / "g"
    with pytest.MonkeyPatch.context() as patch:
        here.__wrapped__(patch)  # type: ignore[attr-defined]
        assert run("reproduce", "digits", *TINY, "--out", out) == 0
    return out


@pytest.fixture
def done(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "g"))


def test_the_table_and_the_json_by_hand(done: Path, here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "digits", *TINY, "--out", done, "--json") == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert here == []  # all was done
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
        assert robust["deviation"] == pytest.approx(abs(shares[0] - shares[1]) / 2**0.5)
        assert row["passes"]["values"] == passes
    assert (said["failed"], said["finished"], said["report"]) == ({}, True, str(done / "index.html"))
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    captured = capsys.readouterr()
    for row in said["methods"]:
        natural = [100 * value for value in row["accuracy"]["natural"]["values"]]
        shown = f"{statistics.mean(natural):.2f} ± {statistics.stdev(natural):.2f}"
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


def test_cells_are_ordinary_runs(done: Path) -> None:
    words = ("--set", "samples=120", *TINY[TINY.index("--validation") :], "--epochs", "2", "--threads", "1")
    alone = done.parent / "alone"
    assert run("train", "--data", "digits", "--method", "pgd", "--seed", "1", *words, "--out", alone) == 0
    assert records(alone) == records(done / "pgd-s1")


@pytest.mark.parametrize("seed", [0, 1])
def test_what_was_cut_short_goes_on(
    seed: int,
    done: Path,
    whole: Path,
    here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in CELLS[2 * seed :]:
        shutil.rmtree(done / name)
    say, steps = TrainingOutput.__call__, iter(range(1000))

    def interrupting(self: TrainingOutput, event: TrainingEvent) -> None:
        say(self, event)
        if isinstance(event, StepDone) and next(steps) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingOutput, "__call__", interrupting)
    assert run("reproduce", "digits", *TINY, "--out", done) == 130
    captured = capsys.readouterr()
    assert f"{2 * seed} of 4 are done" in captured.err
    assert "to go on: " in captured.err
    assert ("1 of 2" if seed else "0 of 2") in captured.out
    monkeypatch.setattr(TrainingOutput, "__call__", say)
    here.clear()
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert here == CELLS[2 * seed :]
    assert "continuing at epoch" in capsys.readouterr().err
    assert same(results(done), results(whole))


def test_a_damaged_record_is_made_again(done: Path, whole: Path, here: list[str]) -> None:
    (record,) = (done / "pgd-s1").glob("evaluation/*.json")
    record.write_text(record.read_text()[:100])
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert here == ["pgd-s1"]
    assert same(results(done), results(whole))


def test_a_cell_that_fails_is_told_of_and_the_rest_goes_on(
    done: Path, whole: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in CELLS[1:]:
        shutil.rmtree(done / name)
    (done / "pgd-s1").mkdir()
    (done / "pgd-s1" / "thesis.tex").write_text("x")
    assert run("reproduce", "digits", *TINY, "--out", done, "--json") == 1
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert here == CELLS[1:]
    assert (list(said["failed"]), said["finished"]) == (["pgd-s1"], False)
    assert [row["seeds"] for row in said["methods"]] == [[0], [0, 1]]
    assert f"failed: pgd-s1: sihg: error: a reason; all that it said: {done / 'pgd-s1' / 'output.log'}" in captured.err
    assert "1 of 4 cells failed: when the reason is gone, the same command goes on" in captured.err
    (done / "pgd-s1" / "thesis.tex").unlink()
    here.clear()
    assert run("reproduce", "digits", *TINY, "--out", done) == 0
    assert here == ["pgd-s1"]
    assert same(results(done), results(whole))


def test_a_cell_that_is_ended_by_others_is_no_success(
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


def test_trials_and_methods_may_be_added(done: Path, here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = results(done)
    assert run("reproduce", "digits", *TINY, "--out", done, "--methods", "natural,pgd", "--trials", "3", "--json") == 0
    assert here == ["natural-s0", "natural-s1", "natural-s2", "pgd-s2"]
    said = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["seeds"]) for row in said["methods"]] == [("natural", [0, 1, 2]), ("pgd", [0, 1, 2])]
    now = results(done)
    assert same({cell: now[cell] for cell in before}, before)
    assert run("reproduce", "digits", *TINY, "--out", done) == 0  # and what was asked first is still there
    assert len(here) == 4


def test_other_settings_are_refused(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (("--epochs", "3"), "methods.pgd.epochs = 2 (here 3)"),
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
    done: Path, here: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert here == []


def test_what_is_half_done_is_listed_so(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    "unknown data set 'digit' (did you mean 'digits'?): choose from cifar10, digits, mnist, svhn": ("digit",),
    "unknown preset 'fast'": ("digits", "--preset", "fast"),
    "unknown method 'pdg': choose from natural, fgsm": ("digits", "--methods", "pdg"),
    "--methods names none: such as --methods pgd": ("digits", "--methods", ","),
    "--attacks names none: such as --attacks natural": ("digits", "--attacks", ""),
    "unknown attack 'pdg-20'": ("digits", "--attacks", "natural,pdg-20"),
    "--trials must be at least 1, got 0": ("digits", "--trials", "0"),
    "--jobs must be at least 1, got 0": ("digits", "--jobs", "0"),
    "--threads must be at least 1, got 0": ("digits", "--threads", "0"),
    "--samples must be at least 1, got 0": ("digits", "--samples", "0"),
    "cannot take 398 of the 397 samples": ("digits", "--samples", "398"),
    "unknown argument '--epoch': did you mean --epochs?": ("digits", "--epoch", "3"),
    "epochs must be an integer >= 1, got 0": ("digits", "--epochs", "0"),
    "has no setting 'tau', which belongs to msi-hg": ("digits", "--methods", "pgd,dat", "--tau", "0.1"),
    "--seed is said by --trials here": ("digits", "--seed", "3"),
    "--method is said by --methods here": ("digits", "--method", "pgd"),
    "--data is said by the name of the data here": ("digits", "--data", "mnist"),
    "--set 'x' is not of the form KEY=VALUE": ("digits", "--set", "x"),
    "--lr needs a value": ("digits", "--lr"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_one_line_and_leave_nothing(
    message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *MISTAKES[message], "--out", tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--trials", "1.5"), ("--trials", "-1"), ("--jobs", "two"), ("--samples", "x")])
def test_what_is_no_number(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "digits", *words) == 2
    assert f"{words[0]}: {words[1]!r} is not an integer >= 0" in capsys.readouterr().err


def test_data_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "mnist", "--data-dir", tmp_path / "none", "--out", tmp_path / "g")
    assert "sihg data get mnist" in said
    assert list(tmp_path.iterdir()) == []


def test_a_setting_goes_to_the_methods_that_have_it(
    tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        *("--methods", ",".join(m for m in METHODS if m != "ibp"), "--trials", "1", "--samples", "20"),
        *("--attacks", "natural", "--epochs", "1", "--set", "samples=60", "--validation", "10", "--width", "1/4"),
    )
    assert run("reproduce", "digits", *words, "--tau", "1/16", "--steps", "1", "--flip") == 0
    out = tmp_path / "runs" / "reproduce-digits"
    assert len(here) == len(METHODS) - 1
    texts = {path.parent.name: path.read_text() for path in out.glob("*/config.toml")}
    assert "tau = 0.0625" in texts["msi-hg-s0"]
    assert "\nsteps = 1\n" in texts["pgd-s0"]
    assert "\nouter = 10\n" in texts["yopo-s0"]
    assert all("\nflip = true\n" in text for text in texts.values())


# ---- with processes


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sihg", "reproduce", "digits", *TINY, "--out", str(out), *words]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(happened: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_in_processes_whatever_the_jobs(jobs: int, whole: Path, tmp_path: Path) -> None:
    with start(tmp_path / "g", "--jobs", str(jobs), "--trials", str(jobs)) as grid:
        out, err = grid.communicate()
    assert grid.returncode == 0, err
    expected = results(whole)
    assert same(results(tmp_path / "g"), {name: expected[name] for name in CELLS[: 2 * jobs]})
    assert f"{2 * jobs} of {2 * jobs} cells to run in {tmp_path / 'g'}, {jobs} at a time" in err
    assert f"{2 * jobs} of {2 * jobs} are done" in err
    assert "│ msi-hg" in out
    assert "$ sihg train --preset digits" in (tmp_path / "g" / "pgd-s0" / "output.log").read_text()


@pytest.mark.slow
def test_kill_9_at_several_moments_changes_nothing(whole: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "g", ("--jobs", "2", "--trials", "1", "--checkpoint-minutes", "0")
    moments: list[Callable[[], object]] = [
        lambda: (out / "pgd-s0" / "config.toml").is_file(),
        lambda: any(out.glob("msi-hg-s0/checkpoints/last-0000000[1-9]")),
        lambda: any(out.glob("*-s0/evaluation")),
    ]
    for happened in moments:
        with start(out, *words) as grid:
            wait_for(lambda grid=grid, happened=happened: happened() or grid.poll() is not None)  # type: ignore[misc]
            grid.kill()
            assert grid.wait() == -signal.SIGKILL
    with start(out, *words) as grid:
        _, err = grid.communicate()
    assert grid.returncode == 0, err
    found, expected = results(out), {name: results(whole)[name] for name in CELLS[:2]}
    for cell in (*found.values(), *expected.values()):
        del cell["config"]  # these have checkpoints more often
    assert same(found, expected)


@pytest.mark.slow
def test_ctrl_c_stops_all_with_a_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "g"
    with start(out, "--epochs", "2000", "--jobs", "2") as grid:
        folders = [out / name / "checkpoints" for name in CELLS[:2]]
        wait_for(lambda: all(len(list(one.glob("last-*"))) > 1 for one in folders) or grid.poll() is not None)
        grid.send_signal(signal.SIGINT)
        _, err = grid.communicate(timeout=60)
    assert grid.returncode == 130, err
    assert err.count(": stopped, ") == 2
    assert "to go on: sihg reproduce digits" in err
    for name in CELLS[:2]:
        with locked(out / name):  # nobody is there any more
            assert "to continue: sihg resume" in (out / name / "output.log").read_text()
    assert not (out / "pgd-s1").exists()
