"""The process of a cell: it trains or resumes, evaluates, and stops when its input ends."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sihg.experiments import cell
from sihg.experiments.cell import PATIENCE_SECONDS, evaluate_cell, train_cell
from sihg.experiments.grid_run import GridRun, build_grid
from sihg.experiments.launcher import Progress
from sihg.store.run_folder import locked
from tests.experiments.grids import SETTINGS, ignore
from tests.refused import refused

DONE = SimpleNamespace(finished=True)
# Runs a cell whose training, or evaluation, waits until it is interrupted.
CODE = """
import sys, time
from pathlib import Path
from sihg.experiments import cell

def waiting(phase):
    def work(folder, **_):
        try:
            print("in", phase, file=sys.stderr, flush=True)
            while phase == sys.argv[2]:
                time.sleep(0.01)
        except KeyboardInterrupt:
            if phase == "evaluation":
                raise
        return True  # of training in its last epoch, which ends in any case
    return work

cell.train_cell, cell.evaluate_cell = waiting("training"), waiting("evaluation")
sys.exit(cell.main(Path(sys.argv[1])))
"""


def stop_in(phase: str, folder: Path) -> tuple[int, str]:
    """Return the exit code and the output of a cell whose input ends in this phase."""
    pipe = subprocess.PIPE
    with build_grid("digits", out=folder).opened():
        (folder / "pgd-s0").mkdir()
    command = [sys.executable, "-c", CODE, str(folder / "pgd-s0"), phase]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        output = ""
        while f"in {phase}" not in output:
            line = process.stderr.readline()
            assert line, output
            output += line
        _, rest = process.communicate()  # ends its input
    return process.returncode, output + rest


def test_stopped_in_the_last_epoch_it_does_not_evaluate(tmp_path: Path) -> None:
    code, output = stop_in("training", tmp_path)
    assert code == 130
    assert "in evaluation" not in output
    assert "Traceback" not in output


def test_stopped_in_an_evaluation(tmp_path: Path) -> None:
    code, output = stop_in("evaluation", tmp_path)
    assert code == 130
    assert "in training" in output
    assert "Traceback" not in output


def test_a_cell_by_itself(tmp_path: Path) -> None:
    options: Any = {"methods": "pgd", "trials": 1, "attacks": "natural", "samples": 20, "settings": SETTINGS}
    grid = build_grid("digits", out=tmp_path, threads=2, **options)
    (only,) = grid.cells()
    with grid.opened():
        only.begin(grid.threads)
    config = (only.folder / "config.toml").read_bytes()
    command = [sys.executable, "-m", "sihg.experiments.cell", str(only.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.stdout, process.stderr
        assert out is not None
        assert err is not None
        lines = [json.loads(line) for line in out]  # its input stays open meanwhile
        output = err.read().decode()
    assert process.returncode == 0, output
    assert only.state() == "done"
    assert (only.folder / "config.toml").read_bytes() == config
    assert [line for line in lines if line["done"] == line["total"]] == [
        {"phase": "training", "done": 4, "total": 4},
        {"phase": "natural", "done": 20, "total": 20},
    ]
    assert "epoch 2: loss " in output
    assert json.loads((only.folder / "environment.json").read_text())["threads"] == 2
    metrics = (only.folder / "metrics.csv").read_bytes()
    assert train_cell(only.folder, report=ignore)  # nothing is left to train; with the run's threads, so no warning
    assert (only.folder / "metrics.csv").read_bytes() == metrics


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with refused("not-a-run"):
        train_cell(tmp_path)
    with refused("not-a-run"):
        evaluate_cell(tmp_path)


def test_it_waits_for_a_process_that_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += PATIENCE_SECONDS / 4

    monkeypatch.setattr(cell, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with locked(tmp_path):
        cell._wait_until_free(tmp_path)
    assert len(waits) == 4
    cell._wait_until_free(tmp_path)
    assert len(waits) == 4


def test_progress_is_written_a_few_times_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr(cell, "time", SimpleNamespace(monotonic=lambda: now[0]))
    report = cell._Reporter(out)
    for phase, done, seconds in (("a", 1, 0.0), ("a", 2, 0.1), ("a", 3, 0.25), ("a", 9, 0.25), ("b", 1, 0.25)):
        now[0] = 100.0 + seconds
        report(Progress(phase, done, 9))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["phase"], line["done"]) for line in lines] == [("a", 1), ("a", 3), ("a", 9), ("b", 1)]


def test_the_folder_of_the_data_reaches_training_and_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Path | None] = {}
    monkeypatch.setattr(cell, "resume_run", lambda _folder, data_dir, **_: found.update(training=data_dir) or DONE)
    monkeypatch.setattr(cell, "evaluate_run", lambda *_, data_dir, **__: found.update(evaluation=data_dir))
    grid = build_grid("digits", methods="pgd", trials=1, out=tmp_path / "g", settings=SETTINGS)
    run = GridRun(grid, data_dir=tmp_path / "data")
    (job,) = (run._job(only) for only in grid.cells())
    _, _, module, folder, data_dir = job.command
    with grid.opened():
        job.prepare()
    assert module == "sihg.experiments.cell"
    train_cell(folder, data_dir=Path(data_dir), report=ignore)
    evaluate_cell(folder, data_dir=Path(data_dir), report=ignore)
    assert found == {"training": tmp_path / "data", "evaluation": tmp_path / "data"}
