"""Means, deviations, ranges and intervals against SciPy and by hand; messages that differ only in numbers."""

from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from sihg.store.statistics import Spread, describe_spreads, group_similar, spread, spread_text, welch


def test_mean_and_sample_deviation_of_three_or_more() -> None:
    assert spread([0.25, 0.75, 1.0, None]) == Spread(2 / 3, stdev([0.25, 0.75, 1.0]), 3, 4, 0.25, 1.0)
    assert spread([None]) is None
    assert spread([]) is None


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5], "50.00"),
        ([0.5, None], "50.00 (1 of 2)"),
        ([0.25, 0.75], "50.00 (25.00 - 75.00)"),
        ([0.75, None, 0.25], "50.00 (25.00 - 75.00; 2 of 3)"),
        ([0.5, 0.5], "50.00"),
        ([0.5, 0.5, 0.5], "50.00"),
        ([0.25, 0.5, 0.75], "50.00 ± 25.00"),
    ],
)
def test_a_deviation_needs_three_trials_that_differ(values: list[float | None], shown: str) -> None:
    found = spread(values)
    assert found is not None
    known = [value for value in values if value is not None]
    assert (found.deviation is not None) == (len(known) >= 3 and len(set(known)) > 1)
    text = spread_text(found, lambda share: f"{100 * share:.2f}")
    assert text.replace("\N{NO-BREAK SPACE}", " ") == shown


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([1, 1], "mean"),
        ([2, 1], "mean (lowest - highest)"),
        ([5, 1, None], "mean ± deviation"),
        ([2, 3], "mean ± deviation (of two: lowest - highest)"),
    ],
)
def test_a_table_says_what_it_shows_of_its_trials(trials: list[int | None], said: str) -> None:
    assert describe_spreads(trials) == said


@pytest.mark.parametrize("sizes", [(3, 3), (3, 5), (7, 3)])
def test_the_interval_equals_scipys(sizes: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    one, other = (draw.normal(0.5, scale, n) for scale, n in zip((0.03, 0.3), sizes, strict=True))
    ours = welch(*(Spread(fmean(values), stdev(values), len(values)) for values in (one, other)))
    theirs = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert ours == pytest.approx((one.mean() - other.mean(), theirs.low, theirs.high), rel=1e-12)


def test_messages_that_differ_only_in_numbers_are_one_group() -> None:
    messages = [("a", "1.5 % lost"), ("b", "2 % lost"), ("a", "slow"), ("b", "3 % lost"), ("c", "slow")]
    assert group_similar(messages) == [
        {"a": "1.5 % lost", "b": "2 % lost"},
        {"a": "slow", "c": "slow"},
        {"b": "3 % lost"},
    ]
    assert group_similar([]) == []
