"""Kill workers under torchrun, at random moments and while a checkpoint is written."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.tally import Tally
from tests.processes.launched import TRAIN, Agent, Result, fault, kill_worker, undisturbed, wait_for_checkpoint, workshop

FEW = 3  # kills in `make test`
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


SETUPS = [Setup(2), Setup(4, ("--memory-files",)), Setup(2, ("--memory-files",)), Setup(4)]


def run(points: int | None, *, epochs: int = 10) -> Tally:
    """Kill `points` workers (None: 50) in launches of at most five kills."""
    tally, draw = Tally("kill of a worker"), random.Random(0)
    with workshop() as home:
        words = [*TRAIN, "--epochs", f"{epochs}"]
        known = {setup.words: undisturbed(home, [*words, *setup.words]) for setup in SETUPS[: points or LONG]}
        number = 0
        while tally.tried < (points or LONG):
            setup, folder = SETUPS[number % len(SETUPS)], home / f"{number}"
            folder.mkdir()
            number += 1
            most = min(KILLS_PER_LAUNCH, (points or LONG) - tally.tried)
            expected, seconds = known[setup.words]
            _kill_in(folder, setup, [*words, *setup.words], expected, most, draw, seconds, tally)
    return tally


def _kill_in(
    folder: Path,
    setup: Setup,
    words: list[str],
    expected: Result,
    most: int,
    draw: random.Random,
    seconds: float,
    tally: Tally,
) -> None:
    """Launch one training, kill up to `most` of its workers, and count each kill."""
    launch = ["--standalone", "--max-restarts", f"{RESTARTS}", "--nproc-per-node", f"{setup.processes}"]
    moments = []
    with Agent([*launch, *words, "--out", "run"], folder) as agent:
        while len(moments) < most and (workers := agent.new_workers(setup.processes)):
            victim, moment = draw.randrange(len(workers)), "while a checkpoint is written"
            if draw.random() < 0.5:
                pause = draw.uniform(0, seconds)
                moment = f"{pause:.1f} s after the start"
                time.sleep(pause)
            elif not wait_for_checkpoint(folder, agent):
                break
            if kill_worker(workers[victim]):
                moments.append(f"{victim} {moment}")
        failure = fault(folder, [agent], expected)
    for moment in moments:
        tally.add(failure and f"{setup}, killed {', '.join(moments)} (here {moment}): {failure}")
    if not moments and failure:
        tally.add(f"{setup}, undisturbed: {failure}")
