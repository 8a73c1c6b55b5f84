"""`sihg reproduce` under torchrun: the cells divided over two processes, the same results as with one."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_reproduce_processes import wait_for
from tests.experiments.grids import CELLS, TINY, CellsHere, results, run, same

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 500  # on a busy machine; never reached


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "sihg", "reproduce", "digits", *TINY, "--out", str(out), *words]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_two_processes_share_the_cells(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "g"
    with start(out) as group:
        shown, err = group.communicate(timeout=PATIENCE_SECONDS)
    assert group.returncode == 0, err
    assert same(results(out), results(whole))
    assert "4 of 4 cells to run" in err
    assert "2 at a time" in err
    assert err.count("settings: ") == shown.count("│ msi-hg") == err.count("4 of 4 are done") == 1  # only one prints
    ended = re.findall(r"^([a-z]\S*-s\d): done", err, re.MULTILINE)
    assert ended == [*CELLS[::2], *CELLS[1::2]]  # those of the first process, then those of the second
    assert (out / "index.html").is_file()


@pytest.mark.slow
def test_a_mistake_is_told_once_and_all_end(tmp_path: Path) -> None:
    with start(tmp_path / "g", "--attacks", "pdg-5") as group:
        shown, err = group.communicate(timeout=PATIENCE_SECONDS)
    assert group.returncode != 0
    assert err.count("sihg: error: ") == 1
    assert "[unknown-attack]" in err
    assert shown == ""
    assert not (tmp_path / "g").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks the kernel for the parent of a process")
def test_after_the_death_of_a_process_the_others_end_and_one_process_continues(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "g"
    lock = out / CELLS[1] / ".lock"
    with start(out) as group:
        wait_for(lambda: (lock.is_file() and lock.read_text()) or group.poll() is not None)
        kernel = Path("/proc", lock.read_text().split()[0], "status").read_text()  # of a cell of the second process
        os.kill(int(re.findall(r"^PPid:\s+(\d+)", kernel, re.MULTILINE)[0]), signal.SIGKILL)
        _, err = group.communicate(timeout=PATIENCE_SECONDS)
    assert group.returncode != 0, err
    assert not (out / CELLS[3] / "evaluation").exists()
    CellsHere(monkeypatch)
    wait_for(lambda: not lock.read_text())  # its cell stops at a safe point
    assert run("reproduce", "digits", *TINY, "--out", out) == 0
    assert same(results(out), results(whole))
