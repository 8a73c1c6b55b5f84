"""How curves and paths are thinned, cut and named."""

import numpy as np
import pytest

from sihg.report.figures.convergence import thin_curve
from sihg.report.figures.phase_plane import cut_far_points, find_exit, thin_path
from sihg.report.figures.style import move_apart
from sihg.report.read.palette import LOOKS, OTHERS, look


def test_names_keep_their_order_and_distance() -> None:
    assert move_apart([0.2, 0.5, 0.9], 0.1) == pytest.approx([0.2, 0.5, 0.9])
    assert move_apart([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert move_apart([0.0, 0.0, 1.0, 1.0], 0.1) == pytest.approx([0.0, 0.1, 0.9, 1.0])
    assert move_apart([], 0.1) == []


def test_paths_are_cut_where_they_leave() -> None:
    window = (-1.0, 1.0, -1.0, 1.0)
    path = np.array([[0.0, 0.0], [1e200, 1e200], [1e250, 0.0]])
    cut = cut_far_points(path, window)
    assert np.isnan(cut[2]).all()
    assert cut[1][0] == cut[1][1] <= 1e3
    assert find_exit(cut[:2], window) == pytest.approx([1, 1])
    assert find_exit(np.array([[0.0, 0.0], [0.0, -4.0]]), window) == pytest.approx([0, -1])
    assert find_exit(np.array([[5.0, 0.0], [6.0, 0.0]]), window) == pytest.approx([1, 0])
    assert find_exit(np.array([[5.0, 0.0], [0.5, 0.0]]), window) is None


def test_long_curves_are_thinned_but_keep_their_extremes() -> None:
    x = np.arange(1.0, 200_001)
    y = np.ones_like(x)
    y[123_456], y[123_457] = 1e9, 1e-9
    kept = thin_curve(x, y)
    assert len(kept) < 2100
    assert {0, 123_456, 123_457, 199_999} <= set(kept.tolist())
    nan = float("nan")
    path = np.array([[0, 0], [0, 0.01], [0, 1], [nan, nan], [nan, nan], [0, 1], [0, 1.01]])
    assert thin_path(path, 0.1).tolist() == [0, 2, 3, 5, 6]
    assert thin_path(np.empty((0, 2)), 0.1).tolist() == []


def test_a_method_looks_the_same_everywhere() -> None:
    looks = [*LOOKS.values(), *OTHERS]
    assert len({one.colour for one in looks}) == len({one.marker for one in looks}) == len(looks)
    assert look("ssi-hg") == LOOKS["ssi-hg"]
    assert look("my-method") == look("my-method")
    assert look("my-method") in OTHERS
