"""Kill a real `sihg train` at random moments; then `sihg resume` must give the result of undisturbed training."""

import random
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.child import run_in_child
from tests.faults.tally import Tally
from tests.faults.workloads import RUN, TRAIN, differences, trained, workshop

FEW = 1  # points in `make test`
LONG = 100
SIHG = [sys.executable, "-m", "sihg"]
WORDS = [*TRAIN[: TRAIN.index("--log")], "--set", "epochs=15"]  # long enough to be hit


def run(points: int | None) -> Tally:
    """Kill `points` trainings (None: 100), half of them twice."""
    tally = Tally("kill at a random moment")
    with workshop() as home:
        whole = home / "whole"
        whole.mkdir()
        begin = time.monotonic()
        subprocess.run([*SIHG, *WORDS], cwd=whole, capture_output=True, check=True)
        seconds = time.monotonic() - begin
        expected = run_in_child(trained, whole).value
        draw = random.Random(0)
        for i in range(points or LONG):
            folder = home / f"{i}"
            folder.mkdir()
            moments = [draw.uniform(0.3, 1) * seconds for _ in range(1 + i % 2)]
            for moment in moments:
                _kill_after(moment, folder)
            done = subprocess.run(_command(folder), cwd=folder, capture_output=True, encoding="utf-8", check=False)
            found = run_in_child(trained, folder)
            failure = None
            if done.returncode:
                failure = f"recovery ended with: {done.stderr.strip().splitlines()[-1]}"
            elif found.value is None or differences(found.value, expected):
                failure = f"recovery gives another {differences(found.value or {}, expected)}"
            times = " and ".join(f"{moment:.2f}" for moment in moments)
            tally.add(failure and f"train, killed after {times} s: {failure}")
    return tally


def _command(folder: Path) -> list[str]:
    return [*SIHG, "resume", "run"] if (folder / RUN / "config.toml").exists() else [*SIHG, *WORDS]


def _kill_after(seconds: float, folder: Path) -> None:
    with subprocess.Popen(_command(folder), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
