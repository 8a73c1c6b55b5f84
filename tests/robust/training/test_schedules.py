import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sihg.robust.training.schedules import SCHEDULES, Constant, Cosine, Cyclic, Piecewise, Triangular, build_schedule
from tests.refused import refused

PAPER = [(0, 0), (5, 0.2), (15, 0), (20, 0.02), (30, 0)]
OPTIONS: dict[str, dict[str, Any]] = {
    "constant": {},
    "triangular": {"peak": 4},
    "cyclic": {"points": PAPER},
    "piecewise": {"milestones": [5, 8]},
    "cosine": {"warmup": 2},
}


@pytest.mark.parametrize(
    ("epoch", "lr"), [*PAPER, (2.5, 0.1), (10, 0.1), (17.5, 0.01), (27.5, 0.005), (31, 0), (-1, 0)]
)
def test_the_papers_cycles(epoch: float, lr: float) -> None:
    assert Cyclic(PAPER)(epoch) == pytest.approx(lr, abs=1e-15)


def test_the_first_iteration_of_a_schedule_from_zero_has_rate_zero() -> None:
    for schedule in (Cyclic(PAPER), Triangular(0.1, 4, 10), Cosine(0.1, 10, warmup=2)):
        assert schedule(0.0) == 0
        assert schedule(1e-3) > 0


def test_triangular_rises_to_its_peak_and_falls_to_zero() -> None:
    schedule = Triangular(0.2, 6, 15)
    assert [schedule(t) for t in (0, 3, 6, 10.5, 15, 16)] == pytest.approx([0, 0.1, 0.2, 0.1, 0, 0])
    assert schedule(6) == 0.2


def test_piecewise_falls_at_each_milestone() -> None:
    schedule = Piecewise(0.04, [30, 34, 36], 0.1)
    assert [schedule(t) for t in (0, 29.999, 30, 33.9, 34, 36)] == pytest.approx([0.04, 0.04, 4e-3, 4e-3, 4e-4, 4e-5])
    assert Piecewise(0.04, [])(99) == 0.04


def test_cosine_after_a_warm_up() -> None:
    schedule = Cosine(0.1, 12, warmup=2)
    assert [schedule(t) for t in (0, 1, 2, 7, 12, 13)] == pytest.approx([0, 0.05, 0.1, 0.05, 0, 0])
    assert schedule(4.5) == pytest.approx(0.05 * (1 + math.cos(math.pi / 4)))
    assert Cosine(0.1, 12)(0) == 0.1


@given(time=st.floats(-5, 50), name=st.sampled_from(list(SCHEDULES)))
def test_every_rate_lies_between_zero_and_lr(time: float, name: str) -> None:
    schedule = build_schedule(name, 0.2, 30, **OPTIONS[name])
    assert 0 <= schedule(time) <= 0.2
    assert schedule(time) == build_schedule(name, 0.2, 30, **OPTIONS[name])(time)


@given(time=st.floats(0, 40))
def test_straight_lines_have_no_jumps(time: float) -> None:
    assert Cyclic(PAPER)(time) == pytest.approx(Cyclic(PAPER)(time + 1e-9), abs=1e-9)


def test_names_give_the_schedules() -> None:
    assert build_schedule("constant", 0.1, 10) == Constant(0.1)
    assert build_schedule("triangular", 0.1, 10, peak=4) == Triangular(0.1, 4, 10)
    assert build_schedule("cyclic", 0.2, 30, points=[list(p) for p in PAPER]) == Cyclic(PAPER)
    assert build_schedule("piecewise", 0.1, 10, milestones=[5], factor=0.5) == Piecewise(0.1, (5,), 0.5)
    assert build_schedule("cosine", 0.1, 10) == Cosine(0.1, 10, 0)


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("cosinus", {}, "unknown-schedule"),
        ("", {}, "unknown-schedule"),
        ("cosine", {"peak": 3}, "option-unknown"),
        ("constant", {"peak": 3}, "option-unknown"),
        ("triangular", {}, "option-missing"),
        ("cyclic", {"points": PAPER}, "lr-not-highest"),
        ("triangular", {"peak": "4"}, "setting-value"),
        ("triangular", {"peak": 10}, "peak-range"),
        ("cosine", {"warmup": 10}, "warmup-range"),
        ("piecewise", {"milestones": 5}, "schedule-milestones"),
        ("piecewise", {"milestones": [8, 5]}, "epochs-not-rising"),
        ("piecewise", {"milestones": "85"}, "schedule-milestones"),
        ("cyclic", {"points": 3}, "schedule-points"),
        ("cyclic", {"points": []}, "schedule-points"),
        ("cyclic", {"points": [(0, 0), (0, 0.1)]}, "epochs-not-rising"),
        ("constant", {"over": 0}, "setting-value"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], code: str) -> None:
    with refused(code):
        build_schedule(name, 0.1, 10, **options)


def test_rates_are_finite_and_not_negative() -> None:
    for make in (lambda: Constant(-0.1), lambda: Cosine(math.nan, 10)):
        with refused("setting-value", setting="lr"):
            make()
    with refused("setting-value", setting="epochs"):
        Cosine(0.1, math.inf)
    for points in ([(0, -0.1)], [(math.nan, 0.1)], [(0, 0, 1)]):
        with refused("schedule-points"):
            Cyclic(points)  # type: ignore[arg-type]


def test_a_schedule_written_for_more_epochs_is_compressed() -> None:
    short, long = build_schedule("triangular", 0.2, 3, peak=5, over=15), build_schedule("triangular", 0.2, 15, peak=5)
    assert [short(t / 5) for t in range(16)] == pytest.approx([long(t) for t in range(16)])
    assert build_schedule("triangular", 0.2, 15, peak=5, over=15)(7.3) == long(7.3)
