"""Try a few faults of each kind; `python -m tests.faults --long` tries all."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.faults import crashes, damage, full_disk, kills, power_cuts
from tests.faults.tally import Tally

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs os.fork and /proc, as Linux has")
Run = Callable[[int | None], Tally]
FEW: dict[Run, int] = {crashes.run: 30, damage.run: 60, full_disk.run: 30, kills.run: 1, power_cuts.run: 30}
MORE: dict[Run, int] = {crashes.run: 54, damage.run: 90, full_disk.run: 54, power_cuts.run: 54}


@pytest.fixture(scope="module")
def clean() -> Iterator[ProcessPoolExecutor]:
    """Return a process that has computed nothing: after a backward pass, torch cannot compute in a forked child."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def check(clean: ProcessPoolExecutor, run: Run, points: int) -> None:
    tally = clean.submit(run, points).result()
    assert tally.tried > 0
    assert tally.held == tally.tried, "\n".join(tally.failures)


@pytest.mark.parametrize("run", FEW, ids=lambda run: run.__module__.rpartition(".")[2])
def test_few_points(run: Run, clean: ProcessPoolExecutor) -> None:
    check(clean, run, FEW[run])


@pytest.mark.slow
@pytest.mark.parametrize("run", MORE, ids=lambda run: run.__module__.rpartition(".")[2])
def test_more_points(run: Run, clean: ProcessPoolExecutor) -> None:
    check(clean, run, MORE[run])
