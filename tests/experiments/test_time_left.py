"""Time left: the estimate at first, then what the cells really take."""

import pytest

from sihg.experiments.time_left import PRIOR, Outlook, shared


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


COSTS = {"a": {"training": 60.0, "pgd-20": 20.0}, "b": {"training": 60.0, "pgd-20": 20.0}}


def test_before_anything_is_done_the_estimate_stands() -> None:
    assert Outlook(COSTS, 1, Clock()).left() == 160
    assert Outlook(COSTS, 2, Clock()).left() == 80
    assert Outlook({}, 2, Clock()).left() == 0


@pytest.mark.parametrize("slower", [1, 3])
def test_the_pace_is_corrected_by_what_was_measured(slower: int) -> None:
    clock = Clock()
    outlook = Outlook(COSTS, 1, clock)
    outlook.begin("a")
    for step in range(1, 61):
        clock.now += slower
        outlook.hear("a", "training", step, 60)
    assert outlook.share == pytest.approx(60 / 160)
    assert outlook.share_of("a") == pytest.approx(60 / 80)
    assert outlook.left() == pytest.approx(100 * (60 * slower + PRIOR) / (60 + PRIOR))


def test_phases_before_the_one_that_runs_are_done_and_unknown_ones_do_not_count() -> None:
    outlook = Outlook(COSTS, 1, Clock())
    outlook.begin("a")
    outlook.hear("a", "pgd-20", 5, 20)
    outlook.hear("a", "checks", 1, 2)
    assert outlook.share_of("a") == pytest.approx(65 / 80)


def test_what_an_earlier_process_did_is_not_this_ones_pace() -> None:
    clock = Clock()
    outlook = Outlook(COSTS, 1, clock)
    outlook.begin("a")
    clock.now += 1
    outlook.hear("a", "training", 40, 60)
    assert outlook.worked == 0
    outlook.hear("a", "training", 41, 60)
    assert outlook.worked == pytest.approx(1)


def test_a_cell_that_has_ended_leaves_nothing_to_do() -> None:
    clock = Clock()
    outlook = Outlook(COSTS, 2, clock)
    outlook.begin("a")
    clock.now += 80
    outlook.end("a")
    assert outlook.share == pytest.approx(0.5)
    assert outlook.left() == pytest.approx(80)


def test_jobs_side_by_side_take_as_long_as_the_fullest_row() -> None:
    assert shared([], 2) == 0
    assert shared([5, 1, 1, 1], 1) == 8
    assert shared([5, 1, 1, 1], 2) == 5
    assert shared([1, 1, 5], 2) == 6
    assert shared([5], 4) == 5
