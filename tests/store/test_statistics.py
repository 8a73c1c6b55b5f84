"""Means, deviations and intervals against SciPy and by hand; messages that differ only in numbers."""

from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from sihg.store.statistics import Spread, group_similar, spread, welch


def test_mean_and_sample_deviation() -> None:
    assert spread([0.25, 0.75, None]) == Spread(0.5, stdev([0.25, 0.75]), 2, 3)
    assert spread([0.25]) == Spread(0.25, None, 1, None)
    assert spread([None]) is None
    assert spread([]) is None


@pytest.mark.parametrize("sizes", [(2, 2), (3, 5), (7, 2)])
def test_the_interval_equals_scipys(sizes: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    one, other = (draw.normal(0.5, scale, n) for scale, n in zip((0.03, 0.3), sizes, strict=True))
    ours = welch(*(Spread(fmean(values), stdev(values), len(values)) for values in (one, other)))
    theirs = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert ours == pytest.approx((one.mean() - other.mean(), theirs.low, theirs.high), rel=1e-12)


def test_equal_trials_have_an_interval_of_width_zero() -> None:
    assert welch(Spread(0.5, 0.0, 2), Spread(0.25, 0.0, 3)) == (0.25, 0.25, 0.25)
    known = spread([0.25, 0.75, None])
    assert known is not None
    assert known.n == 2  # a trial without a number is left out


def test_messages_that_differ_only_in_numbers_are_one_group() -> None:
    messages = [("a", "1.5 % lost"), ("b", "2 % lost"), ("a", "slow"), ("b", "3 % lost"), ("c", "slow")]
    assert group_similar(messages) == [
        {"a": "1.5 % lost", "b": "2 % lost"},
        {"a": "slow", "c": "slow"},
        {"b": "3 % lost"},
    ]
    assert group_similar([]) == []
