"""`sihg reproduce` with its processes: killed, interrupted, several at a time."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sihg.store.run_folder import locked
from tests.experiments.grids import CELLS, TINY, results, same

ROOT = Path(__file__).parents[2]


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sihg", "reproduce", "digits", *TINY, "--out", str(out), *words]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(happened: Callable[[], object]) -> None:
    while not happened():
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_results_do_not_depend_on_the_jobs(jobs: int, whole: Path, tmp_path: Path) -> None:
    with start(tmp_path / "g", "--jobs", str(jobs), "--trials", "1") as grid:
        out, err = grid.communicate()
    assert grid.returncode == 0, err
    expected = results(whole)
    assert same(results(tmp_path / "g"), {name: expected[name] for name in CELLS[:2]})
    assert f"2 of 2 cells to run in {tmp_path / 'g'}, {jobs} at a time" in err
    assert "2 of 2 are done" in err
    assert "│ msi-hg" in out
    assert "epoch 2: loss " in (tmp_path / "g" / "pgd-s0" / "output.log").read_text()


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
    with start(out, "--set", "epochs=2000", "--jobs", "2") as grid:
        folders = [out / name / "checkpoints" for name in CELLS[:2]]
        wait_for(lambda: all(len(list(one.glob("last-*"))) > 1 for one in folders) or grid.poll() is not None)
        grid.send_signal(signal.SIGINT)
        _, err = grid.communicate()
    assert grid.returncode == 130, err
    assert err.count(": stopped, ") == 2
    assert "to continue: sihg reproduce digits" in err
    for name in CELLS[:2]:
        with locked(out / name):  # nobody is there any more
            assert (out / name / "output.log").read_text().endswith("\nstopped\n")
    assert not (out / "pgd-s1").exists()
