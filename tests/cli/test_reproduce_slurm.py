"""`sihg reproduce --launcher slurm` with submitit's local executor: interrupted, preempted, killed, the same result."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.experiments import _slurm
from tests.cli.test_reproduce_processes import wait_for
from tests.experiments.grids import CELLS, TINY, CellsHere, results, run, same

ROOT = Path(__file__).parents[2]
LONGER = ("--methods", "msi-hg", "--trials", "1", "--set", "epochs=60", "--checkpoint-minutes", "0")


@pytest.mark.slow
def test_the_same_results_as_with_processes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(_slurm.CLUSTER, "local")
    monkeypatch.setattr(_slurm, "SECONDS_BETWEEN_LOOKS", 0.1)
    out = tmp_path / "g"
    words = ("reproduce", "digits", *TINY, "--trials", "1", "--out", out, "--launcher", "slurm", "--slurm", "mem_gb=1")
    assert run(*words) == 0
    expected = {name: results(whole)[name] for name in CELLS[:2]}
    assert same(results(out), expected)
    captured = capsys.readouterr()
    assert "2 of 2 are done" in captured.err
    assert "│ msi-hg" in captured.out
    jobs = (out / "submitit" / "jobs.json").read_bytes()
    assert set(json.loads(jobs)["jobs"]) == set(CELLS[:2])
    assert run(*words) == 0
    assert (out / "submitit" / "jobs.json").read_bytes() == jobs  # nothing was submitted again
    assert run("check", out) == 0


def start(out: Path) -> subprocess.Popen[bytes]:
    """Start the command. Its output goes to a file: submitit's local jobs inherit it, and would keep a pipe open."""
    command = [sys.executable, "-m", "sihg", "reproduce", "digits", *TINY, *LONGER, "--launcher", "slurm"]
    environment = {**os.environ, _slurm.CLUSTER: "local"}
    with (out.parent / "err").open("wb") as err:
        return subprocess.Popen([*command, "--out", str(out)], cwd=ROOT, env=environment, stderr=err)


def newest_job(log: Path) -> tuple[int, int]:
    """Return the process of the newest job, and how many there were."""
    found = re.findall(r"^job \d+: process (\d+) on ", log.read_text(), re.MULTILINE)
    return int(found[-1]), len(found)


@pytest.mark.slow
def test_interrupted_killed_and_preempted_it_ends_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "g"
    cell, jobs = out / "msi-hg-s0", out / "submitit" / "jobs.json"
    log, err = cell / "output.log", tmp_path / "err"

    def step() -> int:
        return max((int(path.name[5:]) for path in cell.glob("checkpoints/last-*")), default=0)

    with start(out) as grid:  # Ctrl-C: the job goes on
        wait_for(lambda: step() >= 5 or grid.poll() is not None)
        trainer = int((cell / ".lock").read_text().split()[0])
        os.kill(trainer, signal.SIGSTOP)  # so that it is not done before the next command waits for it
        grid.send_signal(signal.SIGINT)
    number = json.loads(jobs.read_bytes())["jobs"]["msi-hg-s0"]["job"]
    assert grid.returncode == 130, err.read_text()
    assert f"1 jobs go on; to cancel them: scancel {number}\n" in err.read_text()

    with start(out) as grid:  # waits for the same job, which is killed
        wait_for(lambda: f"msi-hg-s0: job {number}" in err.read_text() or grid.poll() is not None)
        os.kill(newest_job(log)[0], signal.SIGKILL)
        os.kill(trainer, signal.SIGCONT)
    assert grid.returncode == 1, err.read_text()
    assert f"job {number} is FINISHED" in err.read_text()
    assert f"its whole output: {log}" in err.read_text()
    reached = step()
    assert 5 <= reached < 120

    with start(out) as grid:  # a new job, which is preempted and requeued
        wait_for(lambda: step() > reached or grid.poll() is not None)
        os.kill(newest_job(log)[0], signal.SIGUSR2)
    assert grid.returncode == 0, err.read_text()
    assert newest_job(log)[1] == 3
    assert log.read_text().count("from step ") == 3
    CellsHere(monkeypatch)
    assert run("reproduce", "digits", *TINY, *LONGER, "--out", tmp_path / "whole") == 0
    assert same(results(out), results(tmp_path / "whole"))
