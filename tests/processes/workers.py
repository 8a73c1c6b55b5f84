"""Kill workers under torchrun, at random moments and while a checkpoint is written."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.tally import Tally
from tests.processes.launched import (
    STEPS_PER_EPOCH,
    TRAIN,
    Agent,
    Result,
    fault,
    kill_worker,
    newest_step,
    undisturbed,
    wait_for_checkpoint,
    wait_for_step,
    workshop,
)

FEW, MORE = 3, 10
LONG = 50
KILLS_PER_LAUNCH = 5
RESTARTS = 1000


@dataclass(frozen=True)
class Setup:
    """How a training is launched."""

    processes: int
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.processes} processes", *self.words])


SETUPS = [Setup(2, ("--memory-files",)), Setup(4), Setup(2), Setup(4, ("--memory-files",))]


def run(points: int | None, *, epochs: int = 10) -> Tally:
    """Kill `points` workers (None: 50) in launches of at most five kills."""
    tally, draw = Tally("kill of a worker"), random.Random(0)
    with workshop() as home:
        known: dict[tuple[str, ...], Result] = {}
        number = 0
        while tally.tried < (points or LONG):
            setup, folder = SETUPS[number % len(SETUPS)], home / f"{number}"
            words = [*TRAIN, "--epochs", f"{epochs}", *setup.words]
            if setup.words not in known:
                known[setup.words] = undisturbed(home, words)
            folder.mkdir()
            number += 1
            launch = Launch(setup, words, folder, epochs * STEPS_PER_EPOCH)
            launch.run(known[setup.words], min(KILLS_PER_LAUNCH, (points or LONG) - tally.tried), draw, tally)
    return tally


@dataclass(frozen=True)
class Launch:
    """One training in which workers are killed."""

    setup: Setup
    words: list[str]
    folder: Path
    steps: int

    def run(self, expected: Result, most: int, draw: random.Random, tally: Tally) -> None:
        """Kill up to `most` workers, wait for the end, and count each kill."""
        count = self.setup.processes
        launch = ["--standalone", "--max-restarts", f"{RESTARTS}", "--nproc-per-node", f"{count}"]
        moments: list[str] = []
        with Agent([*launch, *self.words, "--out", "run"], self.folder) as agent:
            while len(moments) < most and (workers := agent.new_workers(count)):
                moment, victim = self._wait(agent, draw), draw.randrange(count)
                if moment and kill_worker(workers[victim]):
                    moments.append(f"{victim} {moment}")
            failure = fault(self.folder, [agent], expected)
        for _ in moments or (["nobody"] if failure else []):
            tally.add(failure and f"{self.setup}, killed {', '.join(moments)}: {failure}")

    def _wait(self, agent: Agent, draw: random.Random) -> str:
        """Wait for a random moment; return its description, "" if the training has ended before it."""
        kind = draw.choice(["start", "step", "checkpoint"])
        pause = draw.uniform(0, 4)
        if kind == "start":
            time.sleep(pause)
            return f"{pause:.1f} s after the start"
        if kind == "checkpoint":
            return "while a checkpoint is written" if wait_for_checkpoint(self.folder, agent) else ""
        here = newest_step(self.folder)
        step = draw.randrange(here + 1, max(here + 2, (here + self.steps) // 2))
        if not wait_for_step(step, self.folder, agent):
            return ""
        time.sleep(pause / 20)
        return f"after step {step}"
