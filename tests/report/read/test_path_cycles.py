"""Limit cycles are found in paths that go round at one size, and in no others."""

import numpy as np
import pytest

from sihg.report.read.evaluations import Floats
from sihg.report.read.path_cycles import find_limit_cycle


def spiral(growth: float, angle: float, steps: int = 600, radius: float = 1.0) -> Floats:
    k = np.arange(steps)
    size = radius * growth**k
    return np.column_stack((0.3 + size * np.cos(angle * k), -0.2 + size * np.sin(angle * k)))


@pytest.mark.parametrize("turns", [50.0, 47.3, 8.0, 2.0])
def test_a_circle_is_a_cycle_of_its_period(turns: float) -> None:
    cycle = find_limit_cycle(spiral(1.0, 2 * np.pi / turns))
    assert cycle is not None
    assert len(cycle) - 1 == pytest.approx(turns, abs=0.51)
    assert np.allclose(cycle[-1], spiral(1.0, 2 * np.pi / turns)[-1])
    assert float(np.ptp(cycle[:, 0])) == pytest.approx(2.0, abs=0.2)


def test_a_path_that_is_drawn_onto_a_cycle_has_its_last_round() -> None:
    inside = spiral(1.0, 0.2, steps=900)
    inside[:200] = 0.3, -0.2
    inside[200:450] *= np.linspace(0.1, 1, 250)[:, None]
    cycle = find_limit_cycle(inside)
    assert cycle is not None
    assert len(cycle) - 1 == pytest.approx(2 * np.pi / 0.2, abs=1)


@pytest.mark.parametrize(
    "path",
    [
        spiral(0.99, 0.2),
        spiral(1.01, 0.2),
        np.column_stack((np.linspace(0, 5, 600), np.zeros(600))),
        np.zeros((600, 2)),
        spiral(1.0, 0.2, steps=39),
        spiral(1.0, 2 * np.pi / 500),  # slower than a quarter of the path
        np.vstack((spiral(1.0, 0.2), [[np.nan, np.nan]])),
        np.empty((0, 2)),
    ],
    ids=["in", "out", "straight", "still", "short", "slow", "not finite", "empty"],
)
def test_other_paths_have_none(path: Floats) -> None:
    assert find_limit_cycle(path) is None


def test_a_method_that_has_converged_has_none() -> None:
    path = spiral(0.9, 0.5, steps=4000)  # ends in rounding
    assert find_limit_cycle(path) is None
