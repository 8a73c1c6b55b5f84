"""kill -9, again and again, at any moment and inside checkpoints: the run ends bit by bit as if nobody had."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sihg.robust.memory import PerturbationMemory
from sihg.robust.training.config import Settings
from sihg.robust.training.preflight import prepare
from sihg.robust.training.trainer import Trainer
from sihg.store.run_folder import RunFolder
from tests.robust.small import as_bytes, records, settings, without_seconds
from tests.robust.training.trainers import begin

KILLS = 25
EPOCHS, STEPS = 4, 25


def chosen(minutes: float, *, files: bool) -> Settings:
    small = {"samples": 400, "validation": 25, "batch_size": 15, "epochs": EPOCHS, "steps": 2, "evaluate_with": "pgd-2"}
    return settings(**small, ema=0.9, crop=1, memory_files=files, checkpoint_minutes=minutes)


def train(path: Path, wanted: Settings) -> None:
    """Begin or go on, as a user would."""
    begun = (path / "config.toml").exists()
    folder = RunFolder.open(path) if begun else begin(path, wanted)
    trainer = Trainer(prepare(wanted), folder)
    if begun:
        trainer.resume()
    trainer.run()


def in_a_child(path: Path, wanted: Settings) -> int:
    """Train in a process that can be killed; forked, since importing torch takes longer than the run."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(path, wanted)
            code = 0
        finally:
            os._exit(code)
    return child


def wait_for(path: Path, child: int, step: int, *, writing: bool) -> bool:
    """Wait for a checkpoint of that step, or for one being written after it; False if the child ended before."""
    while True:
        names = checkpoints(path)
        reached = max((int(name[5:]) for name in names if name.startswith("last-")), default=-1) >= step
        if reached and (not writing or any(".tmp-" in name for name in names)):
            return True
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return False
        time.sleep(0.0005)


def checkpoints(path: Path) -> list[str]:
    """The names in the folder of checkpoints, those being written too."""
    folder = path / "checkpoints"
    return [p.name for p in folder.iterdir()] if folder.is_dir() else []


def torture(path: Path, seed: int, wanted: Settings) -> dict[str, int]:
    """Kill the run at 25 moments of its way, then let it end; count what was hit."""
    draw = random.Random(seed)
    hit = {"killed": 0, "while writing": 0}
    for kill, step in enumerate(sorted(draw.randrange(-1, EPOCHS * STEPS - 10) for _ in range(KILLS))):
        child = in_a_child(path, wanted)
        writing = kill % 3 == 0
        if not wait_for(path, child, step, writing=writing):
            break
        time.sleep(0.0 if writing else draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        hit["killed"] += os.WIFSIGNALED(status)
        hit["while writing"] += any(".tmp-" in name for name in checkpoints(path))
    _, status = os.waitpid(in_a_child(path, wanted), 0)
    return {**hit, "exit": status}


def left_behind(path: Path) -> dict[str, Any]:
    """All that the run has computed; of a memory in files, what it holds, since its checksums depend on its id."""
    last = path / "checkpoints" / f"last-{EPOCHS * STEPS:08d}"
    in_files = (path / "memory").is_dir()
    groups = [p for p in last.glob("*.safetensors") if not (in_files and p.name == "memory.safetensors")]
    found: dict[str, Any] = {p.name: p.read_bytes() for p in groups}
    if in_files:
        found |= {f"memory.{name}": as_bytes(tensor) for name, tensor in open_memory(path).state(EPOCHS).items()}
    state = json.loads((last / "manifest.json").read_text())["state"]
    return {**found, **records(path), "progress": without_seconds(state["progress"]), "optimizer": state["optimizer"]}


def open_memory(path: Path) -> PerturbationMemory:
    about = json.loads((path / "memory" / "memory.json").read_text())
    shape = tuple(about["shape"])
    return PerturbationMemory(
        about["n"], shape, about["eps"], dtype=about["dtype"], folder=path / "memory", existing=True
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("files", [False, True], ids=["memory in RAM", "memory in files"])
def test_kill_9_changes_nothing(tmp_path: Path, files: bool) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, chosen(60, files=files))
    command = [sys.executable, "-m", "tests.robust.training.test_kill", str(killed), str(int(files))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    hit = json.loads(done.stdout)
    assert hit["exit"] == 0, done.stderr
    assert hit["killed"] == KILLS
    assert hit["while writing"] >= 3
    found, expected = left_behind(killed), left_behind(whole)
    assert found.keys() == expected.keys()
    assert ("memory.values" if files else "memory.safetensors") in found
    assert [key for key in expected if found[key] != expected[key]] == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    once = settings(epochs=1, samples=20, steps=1)
    Trainer(prepare(once)).run()  # torch imports much of itself at the first step
    _, where, in_files = sys.argv
    print(json.dumps(torture(Path(where), int(in_files), chosen(0.0003, files=in_files == "1"))))
