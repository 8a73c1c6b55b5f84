import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sihg.errors import InputError, UnknownNameError
from sihg.robust.training.schedules import SCHEDULES, Constant, Cosine, Cyclic, Piecewise, Triangular, build

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
    schedule = build(name, 0.2, 30, **OPTIONS[name])
    assert 0 <= schedule(time) <= 0.2
    assert schedule(time) == build(name, 0.2, 30, **OPTIONS[name])(time)


@given(time=st.floats(0, 40))
def test_straight_lines_have_no_jumps(time: float) -> None:
    assert Cyclic(PAPER)(time) == pytest.approx(Cyclic(PAPER)(time + 1e-9), abs=1e-9)


def test_names_give_the_schedules() -> None:
    assert build("constant", 0.1, 10) == Constant(0.1)
    assert build("triangular", 0.1, 10, peak=4) == Triangular(0.1, 4, 10)
    assert build("cyclic", 0.2, 30, points=[list(p) for p in PAPER]) == Cyclic(PAPER)
    assert build("piecewise", 0.1, 10, milestones=[5], factor=0.5) == Piecewise(0.1, (5,), 0.5)
    assert build("cosine", 0.1, 10) == Cosine(0.1, 10, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("cosinus", 0.1, 10), "unknown schedule 'cosinus' .*: choose from constant, triangular, cyclic"),
        (lambda: build("cosine", 0.1, 10, peak=3), "the cosine schedule has no option 'peak': choose from warmup"),
        (lambda: build("constant", 0.1, 10, peak=3), "the constant schedule has no option 'peak': leave it out"),
        (lambda: build("triangular", 0.1, 10), "the triangular schedule needs the option 'peak'"),
        (lambda: build("cyclic", 0.1, 30, points=PAPER), "lr = 0.1 is not the highest .* of the points, 0.2"),
        (lambda: build("triangular", 0.1, 10, peak="4"), "peak must be a number, got '4'"),
        (lambda: build("triangular", 0.1, 10, peak=10), "peak must lie between 0 and epochs = 10, got 10"),
        (lambda: build("cosine", 0.1, 10, warmup=10), "warmup must be >= 0 and < epochs = 10, got 10"),
        (lambda: build("piecewise", 0.1, 10, milestones=5), "milestones must be a list of epochs, got 5"),
        (lambda: build("piecewise", 0.1, 10, milestones=[8, 5]), "the epochs of milestones must rise, got 8 before 5"),
        (lambda: build("piecewise", 0.1, 10, milestones="85"), "a milestone must be a number, got '8'"),
        (lambda: build("cyclic", 0.1, 10, points=3), "points must be pairs of epoch and learning rate, got 3"),
        (lambda: build("cyclic", 0.1, 10, points=[]), "needs points .* got none"),
        (lambda: build("cyclic", 0.1, 10, points=[(0, 0), (0, 0.1)]), "the epochs of points must rise"),
        (lambda: Constant(-0.1), "lr must be finite and >= 0, got -0.1"),
        (lambda: Cosine(math.nan, 10), "lr must be finite and >= 0, got nan"),
        (lambda: Cosine(0.1, math.inf), "epochs = inf"),
    ],
)
def test_wrong_settings_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_an_unknown_name_is_an_unknown_name_error() -> None:
    with pytest.raises(UnknownNameError):
        build("", 0.1, 10)


def test_a_schedule_written_for_more_epochs_is_compressed() -> None:
    short, long = build("triangular", 0.2, 3, peak=5, over=15), build("triangular", 0.2, 15, peak=5)
    assert [short(t / 5) for t in range(16)] == pytest.approx([long(t) for t in range(16)])
    assert build("triangular", 0.2, 15, peak=5, over=15)(7.3) == long(7.3)
    with pytest.raises(InputError, match="over must be a number of epochs > 0, got 0"):
        build("constant", 0.1, 3, over=0)
