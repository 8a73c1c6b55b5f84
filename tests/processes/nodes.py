"""Cut one of two nodes, which are network namespaces, off from the other, and kill it: the other finishes alone."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.tally import Tally
from tests.processes.agents import ENVIRONMENT, hosted_store, rendezvous
from tests.processes.launched import STEPS_PER_EPOCH, TRAIN, Agent, Result, fault, undisturbed, wait_for_step, workshop

FEW = 1
LONG = 4
LINK = "link0"  # the name of the interface in both namespaces
MINUTES = "0.3"  # after which a silent peer counts as lost


@dataclass(frozen=True)
class Node:
    """A network namespace with one address."""

    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """Return the words that run a command in the namespace."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Take the link away; nobody is told."""
        _ip("-n", self.name, "link", "set", LINK, "down")

    def start(self, words: list[str], folder: Path) -> Agent:
        """Start an agent of torchrun here."""
        environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": LINK}
        return Agent(["--local-addr", self.address, *words], folder, prefix=self.prefix, environment=environment)


def missing() -> str:
    """Return why namespaces cannot be made here; "" if they can."""
    if shutil.which("ip") is None:
        return "there is no `ip`: install iproute2"
    name = f"sihg-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces need root: {made.stderr.strip()}"
    _ip("netns", "delete", name)
    return ""


def run(points: int | None, *, epochs: int = 20) -> Tally:
    """Cut `points` nodes off (None: 4): with the first process of the run and without it, killed later and not."""
    tally, draw = Tally("node cut off and killed"), random.Random(0)
    with workshop() as home:
        words = [*TRAIN, "--epochs", f"{epochs}", "--process-minutes", MINUTES, "--memory-files"]
        expected = undisturbed(home, words)
        for number in range(points or LONG):
            folder = home / f"{number}"
            folder.mkdir()
            with two_nodes() as nodes:
                lost, left = nodes if number % 2 == 0 else nodes[::-1]
                step = draw.randrange(epochs * STEPS_PER_EPOCH // 2)
                failure = _cut(folder, [*words, "--out", "run"], expected, lost, left, step, is_killed=number < 2)
            tally.add(failure and f"{lost.address} cut off at step {step}: {failure}")
    return tally


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Make two namespaces with a link between them."""
    nodes = tuple(Node(f"sihg-{os.getpid()}-{i}", f"10.77.0.{i}") for i in (1, 2))
    try:
        for node in nodes:
            _ip("netns", "add", node.name)
        first, second = nodes
        ends = ("type", "veth", "peer", "name", LINK, "netns", second.name)
        _ip("link", "add", LINK, "netns", first.name, *ends)
        for node in nodes:
            _ip("-n", node.name, "address", "add", f"{node.address}/24", "dev", LINK)
            for link in ("lo", LINK):
                _ip("-n", node.name, "link", "set", link, "up")
        yield first, second
    finally:
        for node in nodes:
            subprocess.run(["ip", "netns", "delete", node.name], capture_output=True, check=False)


def _cut(
    folder: Path, words: list[str], expected: Result, lost: Node, left: Node, step: int, *, is_killed: bool
) -> str | None:
    """Train on both nodes, cut one off, and wait for the other, which holds the rendezvous."""
    with hosted_store(left.address, left.prefix) as port:
        words = [*rendezvous(f"{left.address}:{port}", 1), *words]
        with left.start(words, folder) as staying, lost.start(words, folder) as leaving:
            for agent in (staying, leaving):
                agent.new_workers(1)
            if not wait_for_step(step, folder, staying):
                return f"ended before it was cut off: {staying.last_words()}"
            lost.cut()
            if is_killed:
                time.sleep(2)
                leaving.kill()
            return fault(folder, [staying], expected)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
