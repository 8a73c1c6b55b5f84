"""Evaluation: the names of attacks, accuracies that can be counted by hand, models that do not fit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.errors import InputError, UnknownNameError
from sihg.robust import evaluate as evaluation
from sihg.robust.attacks import FGSM, PGD, Natural
from sihg.robust.ball import Ball
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.evaluate import check_model, check_range, checked_device, evaluate, parse_attack
from tests.robust.small import digits


class Threshold(nn.Module):
    """Says 1 where x > 1/2; so an attack of radius r breaks exactly the samples within r of 1/2."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([0.5 - x, x - 0.5], 1)


def on_a_line() -> Samples:
    """Margins .4, .3, .2, .1, -.1 (wrong), .2 and .35."""
    x = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.85], dtype=torch.float64)[:, None]
    return as_samples((x, torch.tensor([0, 0, 0, 0, 0, 1, 1])))


def test_names_of_attacks() -> None:
    ball = Ball(0.25, "l2", None)
    assert isinstance(parse_attack("natural", ball), Natural)
    common: Any = {"eps": 0.25, "norm": "l2", "bounds": None}
    for name, last, same in (
        ("fgsm", True, FGSM(**common, last_iterate=True)),
        ("pgd-20", False, PGD(**common, steps=20)),
        ("pgd-50-10", True, PGD(**common, steps=50, restarts=10, last_iterate=True)),
    ):
        assert repr(parse_attack(name, ball, last_iterate=last)) == repr(same)


@pytest.mark.parametrize("name", ["pgd", "pgd20", "pgd-", "PGD-20", "pgd-20-1-1", "pgd--1", "natural ", "apgd", ""])
def test_unknown_attacks_list_the_forms(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown attack .*: choose from natural, fgsm, pgd-T, pgd-T-R"):
        parse_attack(name, Ball(0.1))


def test_attacks_of_no_steps_are_refused() -> None:
    with pytest.raises(InputError, match="steps must be a whole number >= 1, got 0"):
        parse_attack("pgd-0", Ball(0.1))
    with pytest.raises(InputError, match="restarts must be a whole number >= 1, got 0"):
        parse_attack("pgd-5-0", Ball(0.1))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_accuracies_by_hand(norm: str) -> None:
    names = ["natural", "fgsm", "pgd-10", "pgd-3-2"]
    outcomes = evaluate(Threshold(), on_a_line(), names, Ball(0.25, norm))
    assert [o.attack for o in outcomes] == names
    broken = [[False, False, False, False, True, False, False]] + 3 * [[False, False, True, True, True, True, False]]
    assert [o.broken.tolist() for o in outcomes] == broken
    assert [o.accuracy for o in outcomes] == [6 / 7] + 3 * [3 / 7]
    assert all(o.seconds >= 0 for o in outcomes)
    assert [o.passes > 0 for o in outcomes] == [False, True, True, True]


def test_every_sample_is_told_of_and_modes_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "rows_at_once", lambda _shape: 256)
    heard: list[tuple[str, int]] = []
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(64, 10))
    model[1].eval()
    evaluate(
        model, digits(300), ["natural", "pgd-1"], Ball(0.1), progress=lambda name: lambda n: heard.append((name, n))
    )
    assert heard == [("natural", 256), ("natural", 300), ("pgd-1", 256), ("pgd-1", 300)]
    assert [m.training for m in (model, model[0], model[1], model[2])] == [True, True, False, True]


def test_natural_errors_are_those_of_evaluation_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10))
    samples = digits(50)
    found = Natural().run(model, samples.floats(), samples.y)
    assert torch.equal(found.broken, model.eval()(samples.floats()).argmax(1) != samples.y)
    assert (found.passes, found.forwards) == (0, 50)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_samples_are_floats_a_part_at_a_time(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the verdicts of an attack on all of them at once."""
    torch.manual_seed(0)
    model, samples, eps = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits(700), {"linf": 0.02, "l2": 0.1}[norm]
    whole = PGD(eps=eps, norm=norm, steps=2, restarts=2).run(model, samples.floats(), samples.y, seed=3)
    made, floats = [], Samples.floats

    def counted(self: Samples, index: slice) -> Tensor:
        made.append(len(floats(self, index)))
        return floats(self, index)

    monkeypatch.setattr(evaluation, "check_range", lambda *_: None)  # which has parts of its own
    monkeypatch.setattr(evaluation, "rows_at_once", lambda _shape: 256)
    monkeypatch.setattr(Samples, "floats", counted)
    (outcome,) = evaluate(model, samples, ["pgd-2-2"], Ball(eps, norm), seed=3)
    assert torch.equal(outcome.broken, whole.broken)
    assert outcome.passes == whole.passes
    assert made == [1, 256, 256, 188]
    assert 0 < outcome.accuracy < 0.5


@pytest.mark.parametrize(("ball", "most"), [(Ball(8.0, "linf", None), "1"), (Ball(9.0, "l2", None), "8")])
def test_a_radius_in_pixel_steps_is_refused(ball: Ball, most: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(InputError, match=rf"more than the whole range of the data, {most}: give it in the data's unit"):
        evaluate(model, digits(5), ["fgsm"], ball)
    assert len(evaluate(model, digits(5), ["natural"], ball)) == 1  # which has no radius


def test_data_outside_the_bounds_is_refused_before_any_attack() -> None:
    x = torch.zeros(5000, 1)
    x[4500] = 1.5
    with pytest.raises(InputError, match=r"x goes from 0 to 1.5, outside its bounds \[0, 1\]"):
        check_range(as_samples((x, torch.arange(5000) % 2)), Ball(0.1))


def test_a_device_that_is_not_there() -> None:
    assert checked_device("cpu") == "cpu"
    with pytest.raises(InputError, match=r"device 'nowhere' cannot be used here \(.*\): take cpu") as caught:
        checked_device("nowhere")
    assert "\n" not in str(caught.value)


def test_the_same_seed_gives_the_same_outcome() -> None:
    torch.manual_seed(0)
    model, samples = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits(80)
    runs = [evaluate(model, samples, ["pgd-2"], Ball(0.02), seed=seed)[0] for seed in (0, 0)]
    assert torch.equal(runs[0].broken, runs[1].broken)
    assert runs[0].passes == runs[1].passes


class Odd(nn.Module):
    """Gives what no classifier gives."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        n = len(x)
        odd = {"flat": x.flatten()[:10], "few": torch.zeros(n, 9), "map": torch.zeros(n, 10, 2), "pair": (x, x)}
        if self.kind == "lookup":
            raise IndexError("no such row")
        return odd[self.kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("flat", r"the model gives an output of shape \(10,\) for one sample of digits, which has 10 classes"),
        ("few", r"output of shape \(1, 9\) for one sample"),
        ("map", r"output of shape \(1, 10, 2\) for one sample"),
        ("pair", r"output of shape tuple for one sample"),
        ("lookup", r"does not take samples of shape \(1, 8, 8\) and type torch.float32 \(no such row\): give it data"),
    ],
)
def test_wrong_outputs_are_named(kind: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(Odd(kind), digits(5), ["natural"], Ball(0.1))


def test_wrong_inputs_are_named() -> None:
    big = nn.Sequential(nn.Flatten(), nn.Linear(100, 10))
    with pytest.raises(InputError, match=r"does not take samples of shape \(1, 8, 8\).*64.*100.*data of its size"):
        evaluate(big, digits(5), ["natural"], Ball(0.1))
    double = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    with pytest.raises(InputError, match=r"and type torch.float32 \(.*\): give it data of its size and type"):
        check_model(double, digits(5))


def test_logits_that_are_no_numbers_are_an_error() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.constant_(model.get_parameter("1.bias"), float("nan"))
    with pytest.raises(InputError, match="logits that are not finite"):
        evaluate(model, digits(5), ["natural"], Ball(0.1))
