"""Kill one of two agents of torchrun: the other goes on alone, and a new agent joins it."""

import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.tally import Tally
from tests.processes.launched import (
    STEPS_PER_EPOCH,
    TRAIN,
    Agent,
    Result,
    fault,
    free_port,
    undisturbed,
    wait_for_step,
    workshop,
)

FEW, MORE = 2, 4
LONG = 10
KILLS_PER_LAUNCH = 2
# The rendezvous must outlive any agent, so a process of its own holds it. By default agents also lend a store to their
# workers, and in torch 2.13 a new agent does not learn where that of the others is.
STORE = "import sys, time, torch.distributed as d; s = d.TCPStore(*sys.argv[1:2], int(sys.argv[2]), is_master=True, "
STORE += "wait_for_workers=False); print('ready', flush=True); time.sleep(1e6)"
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
CONFIG = "is_host=0,last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=3"


def run(points: int | None, *, epochs: int = 20) -> Tally:
    """Kill `points` agents (None: 10); after the first of a launch a new agent takes its place."""
    tally, draw = Tally("kill of an agent"), random.Random(0)
    with workshop() as home:
        words = [*TRAIN, "--epochs", f"{epochs}"]
        known: dict[tuple[str, ...], Result] = {}
        number = 0
        while tally.tried < (points or LONG):
            folder, per_node = home / f"{number}", 1 + number % 2
            more = ("--memory-files",) if number % 4 < 2 else ()
            if more not in known:
                known[more] = undisturbed(home, [*words, *more])
            folder.mkdir()
            number += 1
            most = min(KILLS_PER_LAUNCH, (points or LONG) - tally.tried)
            with hosted_store("127.0.0.1") as port:
                launch = rendezvous(f"127.0.0.1:{port}", per_node)
                steps = sorted(draw.sample(range(epochs * STEPS_PER_EPOCH), most))
                moments, failure = _kill_in(
                    folder, [*launch, *words, *more, "--out", "run"], known[more], steps, draw, per_node
                )
            for _ in moments or (["before"] if failure else []):
                tally.add(failure and f"{per_node} workers per agent {more}, killed {', '.join(moments)}: {failure}")
    return tally


@contextmanager
def hosted_store(host: str, prefix: Sequence[str] = ()) -> Iterator[int]:
    """Run a store for rendezvous in a process of its own; yield its port."""
    port = free_port()
    command = [*prefix, sys.executable, "-c", STORE, host, f"{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield port
        finally:
            process.kill()


def rendezvous(endpoint: str, per_node: int, restarts: int = 100) -> list[str]:
    """Return what torchrun needs to know to run on one or two nodes."""
    return [
        *("--nnodes", "1:2", "--nproc-per-node", f"{per_node}", "--max-restarts", f"{restarts}"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", secrets.token_hex(8)),
        *("--rdzv-conf", CONFIG),
    ]


def _kill_in(
    folder: Path,
    words: list[str],
    expected: Result,
    steps: list[int],
    draw: random.Random,
    per_node: int,
) -> tuple[list[str], str | None]:
    """Train with two agents and kill one at each of the steps; return the moments, and what is wrong in the end."""
    agents = [Agent(words, folder, environment=ENVIRONMENT) for _ in range(2)]
    moments: list[str] = []
    try:
        for agent in agents:
            agent.new_workers(per_node)
        for step in steps:
            if not wait_for_step(step, folder, agents[0]) or agents[1].process.poll() is not None:
                break
            time.sleep(draw.uniform(0, 0.2))  # within the steps that follow
            victim = draw.randrange(2)
            agents.pop(victim).kill()
            moments.append(f"{victim} at step {step}")
            if step != steps[-1]:
                agents.append(Agent(words, folder, environment=ENVIRONMENT))
                agents[-1].new_workers(per_node)
        return moments, fault(folder, agents, expected)
    finally:
        for agent in agents:
            agent.kill()
