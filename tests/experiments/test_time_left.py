"""Time left: first the estimate, then corrected by the time that cells really take."""

import pytest

from sihg.experiments.time_left import PRIOR_SECONDS, TimeLeft, schedule_length


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


COSTS = {"a": {"training": 60.0, "pgd-20": 20.0}, "b": {"training": 60.0, "pgd-20": 20.0}}


def test_at_the_start_the_estimate_is_used() -> None:
    assert TimeLeft(COSTS, 1, Clock()).seconds() == 160
    assert TimeLeft(COSTS, 2, Clock()).seconds() == 80
    assert TimeLeft({}, 2, Clock()).seconds() == 0


@pytest.mark.parametrize("slower", [1, 3])
def test_the_estimate_is_corrected_by_the_measured_speed(slower: int) -> None:
    clock = Clock()
    time_left = TimeLeft(COSTS, 1, clock)
    time_left.start("a")
    for step in range(1, 61):
        clock.now += slower
        time_left.advance("a", "training", step, 60)
    assert time_left.share == pytest.approx(60 / 160)
    assert time_left.share_of("a") == pytest.approx(60 / 80)
    assert time_left.seconds() == pytest.approx(100 * (60 * slower + PRIOR_SECONDS) / (60 + PRIOR_SECONDS))


def test_earlier_phases_are_done_and_unknown_phases_do_not_count() -> None:
    time_left = TimeLeft(COSTS, 1, Clock())
    time_left.start("a")
    time_left.advance("a", "pgd-20", 5, 20)
    time_left.advance("a", "checks", 1, 2)
    assert time_left.share_of("a") == pytest.approx(65 / 80)


def test_work_of_an_earlier_process_does_not_count_as_speed() -> None:
    clock = Clock()
    time_left = TimeLeft(COSTS, 1, clock)
    time_left.start("a")
    clock.now += 1
    time_left.advance("a", "training", 40, 60)
    assert time_left.worked == 0
    time_left.advance("a", "training", 41, 60)
    assert time_left.worked == pytest.approx(1)


def test_nothing_is_left_of_a_cell_that_has_ended() -> None:
    clock = Clock()
    time_left = TimeLeft(COSTS, 2, clock)
    time_left.start("a")
    clock.now += 80
    time_left.end("a")
    assert time_left.share == pytest.approx(0.5)
    assert time_left.seconds() == pytest.approx(80)


def test_parallel_jobs_take_as_long_as_the_busiest_worker() -> None:
    assert schedule_length([], 2) == 0
    assert schedule_length([5, 1, 1, 1], 1) == 8
    assert schedule_length([5, 1, 1, 1], 2) == 5
    assert schedule_length([1, 1, 5], 2) == 6
    assert schedule_length([5], 4) == 5
