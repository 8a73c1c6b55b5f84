"""A few kills under torchrun; `python -m tests.processes --long` tries more."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.faults.tally import Tally
from tests.processes import agents, nodes, workers

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, as Linux has")


def check(tally: Tally, points: int) -> None:
    assert tally.tried == points
    assert tally.held == tally.tried, "\n".join(tally.failures)


@pytest.mark.slow
def test_a_training_survives_kills_of_workers() -> None:
    check(workers.run(2, epochs=3), 2)


@pytest.mark.slow
def test_a_training_survives_the_kill_of_an_agent() -> None:
    check(agents.run(1, epochs=3), 1)


@pytest.mark.processes
@pytest.mark.parametrize("kind", [workers, agents], ids=lambda kind: kind.__name__.rpartition(".")[2])
def test_more_kills(kind: ModuleType) -> None:
    check(kind.run(kind.MORE), kind.MORE)


@pytest.mark.processes
def test_a_node_that_is_cut_off_and_killed() -> None:
    if reason := nodes.missing():
        pytest.skip(reason)
    check(nodes.run(2), 2)
