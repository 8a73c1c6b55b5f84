"""Try a few faults of each kind; `python -m tests.faults --long` tries all."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import pytest

from tests.faults import crashes, damage, full_disk, kills, power_cuts

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs os.fork and /proc, as Linux has")


@pytest.fixture(scope="module")
def clean() -> Iterator[ProcessPoolExecutor]:
    """Return a process that has computed nothing: after a backward pass, torch cannot compute in a forked child."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def check(clean: ProcessPoolExecutor, kind: ModuleType, points: int) -> None:
    tally = clean.submit(kind.run, points).result()
    assert tally.tried > 0
    assert tally.held == tally.tried, "\n".join(tally.failures)


def name_of(kind: ModuleType) -> str:
    return kind.__name__.rpartition(".")[2]


@pytest.mark.parametrize("kind", [crashes, damage, full_disk, kills, power_cuts], ids=name_of)
def test_few_points(kind: ModuleType, clean: ProcessPoolExecutor) -> None:
    check(clean, kind, kind.FEW)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [crashes, damage, full_disk, power_cuts], ids=name_of)
def test_more_points(kind: ModuleType, clean: ProcessPoolExecutor) -> None:
    check(clean, kind, kind.MORE)
