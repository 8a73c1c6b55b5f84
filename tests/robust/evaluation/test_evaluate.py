"""Evaluation: the names of attacks, accuracies that can be counted by hand, models that do not fit."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks import PGD, Natural, Transfer
from sihg.robust.attacks import runner as cascade
from sihg.robust.attacks.input_checks import check_device, check_model, check_range
from sihg.robust.attacks.registry import Attacks, plan_attacks
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.evaluation import Evaluation, evaluate
from sihg.robust.evaluation.findings import describe_ball
from sihg.robust.threat import Ball, Bounds
from sihg.store.statistics import wilson
from tests.refused import refused
from tests.robust.evaluation.heard import by_part
from tests.robust.small import digits


class Threshold(nn.Module):
    """Says 1 where x > 1/2; so an attack of radius r breaks exactly the samples within r of 1/2."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([0.5 - x, x - 0.5], 1)


def on_a_line() -> Samples:
    """Margins .4, .3, .2, .1, -.1 (wrong), .2 and .35."""
    x = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.85], dtype=torch.float64)[:, None]
    return as_samples((x, torch.tensor([0, 0, 0, 0, 0, 1, 1])))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "Linf", "L2", "L1"])
def test_accuracies_by_hand(norm: str) -> None:
    names = ["natural", "fgsm", "pgd-10", "pgd-3-2"]
    outcomes = run_attacks(Threshold(), on_a_line(), plan_attacks(names, Ball(0.25, norm)))
    assert [o.attack for o in outcomes] == names
    broken = [[False, False, False, False, True, False, False]] + 3 * [[False, False, True, True, True, True, False]]
    assert [o.broken.tolist() for o in outcomes] == broken
    assert [o.accuracy for o in outcomes] == [6 / 7] + 3 * [3 / 7]
    assert all(o.seconds >= 0 for o in outcomes)
    assert [o.passes > 0 for o in outcomes] == [False, True, True, True]


def test_progress_counts_every_sample_and_modes_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "rows_per_chunk", lambda _shape: 256)
    heard: list[tuple[str, int, int]] = []
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(64, 10))
    model[1].eval()
    evaluate(
        model,
        digits(300),
        attacks="natural,pgd-1",
        eps=0.1,
        progress=by_part(lambda *part: heard.append(part)),
    )
    parts = [(0, 300), (256, 300), (300, 300)]
    assert heard == [(name, *part) for name in ("natural", "pgd-1") for part in parts]
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

    def counted(self: Samples, index: Tensor) -> Tensor:
        made.append(len(floats(self, index)))
        return floats(self, index)

    monkeypatch.setattr(cascade, "rows_per_chunk", lambda _shape: 256)
    monkeypatch.setattr(Samples, "floats", counted)
    (outcome,) = run_attacks(model, samples, plan_attacks("pgd-2-2", Ball(eps, norm)), seed=3)
    assert torch.equal(outcome.broken, whole.broken)
    assert outcome.passes == whole.passes
    assert made == [256, 256, 188]
    assert 0 < outcome.accuracy < 0.5


@pytest.mark.parametrize("ball", [Ball(8.0, "linf", None), Ball(9.0, "l2", None)])
def test_a_radius_in_pixel_steps_is_refused(ball: Ball) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with refused("eps-scale", eps=ball.eps):
        evaluate(model, digits(5), attacks="fgsm", eps=ball.eps, norm=ball.norm, bounds=ball.bounds)


def test_data_outside_the_bounds_is_refused_before_any_attack() -> None:
    x = torch.zeros(5000, 1)
    x[4500] = 1.5
    with refused("data-outside-bounds"):
        check_range(as_samples((x, torch.arange(5000) % 2)), Ball(0.1))


def test_an_unknown_device_is_refused() -> None:
    assert check_device("cpu") == "cpu"
    with refused("device-unavailable", name="nowhere"):
        check_device("nowhere")


def test_the_same_seed_gives_the_same_outcome() -> None:
    torch.manual_seed(0)
    model, samples = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits(80)
    runs = [evaluate(model, samples, attacks="pgd-2", eps=0.02)["pgd-2"] for _ in range(2)]
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
        odd |= {"whole": torch.zeros(n, 10, dtype=torch.int64)}
        if self.kind == "lookup":
            raise IndexError("no such row")
        return odd[self.kind]


@pytest.mark.parametrize(
    ("kind", "code", "values"),
    [
        ("flat", "output-shape", {"shape": (10,)}),
        ("few", "too-few-outputs", {"classes": 10, "outputs": 9}),
        ("map", "output-shape", {"shape": (1, 10, 2)}),
        ("pair", "no-logits", {"type": "tuple", "classes": 10}),
        ("whole", "logits-dtype", {}),
        ("lookup", "model-refuses-samples", {"shape": (1, 8, 8), "dtype": torch.float32, "why": "no such row"}),
    ],
)
def test_wrong_outputs_are_named(kind: str, code: str, values: dict[str, Any]) -> None:
    with refused(code, **values):
        evaluate(Odd(kind), digits(5), attacks="natural", eps=0.1)


def test_wrong_arguments_are_named() -> None:
    net: Any = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    half = {"dtype": torch.float32, "remedy": "it is torch.float16, use model.float()"}
    wrong: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
        ({"model": lambda x: net(x)}, "not-a-module", {}),
        ({"model": copy.deepcopy(net).half()}, "model-refuses-samples", half),
        ({"eps": "8/x"}, "not-a-number", {"value": "8/x"}),
        ({"eps": None}, "not-a-number", {"value": None}),
        ({"attacks": {}}, "no-attack", {}),
        ({"attacks": PGD(eps=0.1)}, "attacks-type", {"kind": "PGD"}),
        ({"attacks": ["natural", PGD(eps=0.1)]}, "attack-name-type", {"kind": "PGD"}),
        ({"attacks": ["natural", None]}, "attack-name-type", {"kind": "NoneType"}),
        ({"samples": 2.5}, "samples-range", {"samples": 2.5}),
        ({"attacks": {"other": Transfer(eps=0.1, source=nn.Linear(3, 2))}}, "transfer-shape", {"shape": (1, 8, 8)}),
    ]
    for changed, code, values in wrong:
        with refused(code, **values):
            evaluate(**{"model": net, "data": digits(5), "attacks": "natural", "eps": 0.1, **changed})
    for bounds in ((0, 0.5, 1), (None, 1), (torch.zeros(3), torch.ones(4))):
        with pytest.raises(InputError, match="bounds must be two numbers"):
            evaluate(net, digits(5), attacks="natural", eps=0.1, bounds=bounds)  # type: ignore[arg-type]


def test_a_dict_may_hold_names_and_own_attacks() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    named = {"b": "pgd-2", "set": "standard", "apgd": "apgd-ce-2", "clean": "natural"}
    mine: Attacks = {"mine": PGD(eps=0.1, steps=2), "theirs": lambda x, _y: x, **named}
    found = evaluate(model, digits(20), attacks=mine, eps=0.1)
    alone = evaluate(model, digits(20), attacks="natural,pgd-2,standard,apgd-ce-2", eps=0.1)
    same = {"mine": "pgd-2", "theirs": "natural", **named}
    for name, usual in same.items():
        assert torch.equal(found[name].broken, alone[usual].broken)
    assert [row.attack for row in found.rows()] == [*same, "all"]


@pytest.mark.parametrize(
    ("bounds", "told"), [((0.0, 1.0), True), ((-0.5, 0.5), True), ((0.0, 255.0), False), (None, False)]
)
def test_eps_in_steps_of_pixels_where_the_range_is_one(bounds: Bounds, told: bool) -> None:
    assert ("= 51/255" in describe_ball(Ball(0.2, "linf", bounds))) is told
    assert "/255" not in describe_ball(Ball(0.2, "l2", bounds))


def test_wrong_inputs_are_named() -> None:
    big = nn.Sequential(nn.Flatten(), nn.Linear(100, 10))
    with refused("model-refuses-samples", shape=(1, 8, 8), remedy="give it data of its size and type"):
        evaluate(big, digits(5), attacks="natural", eps=0.1)
    with refused("model-refuses-samples"):  # also where interval bounds are looked for before
        evaluate(big, digits(5), attacks="standard", eps=0.1)
    double = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    with refused("model-refuses-samples", dtype=torch.float32):
        check_model(double, digits(5), as_stored=True)


def test_logits_that_are_nan_are_an_error() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.constant_(model.get_parameter("1.bias"), float("nan"))
    with refused("logits-not-finite"):
        evaluate(model, digits(5), attacks="natural", eps=0.1)


def test_an_evaluation_is_its_outcomes_and_their_intersection() -> None:
    found = evaluate(Threshold(), on_a_line(), attacks=("natural", "pgd-10", "noise-3"), eps=0.25)
    assert isinstance(found, Evaluation)
    assert found["pgd-10"].accuracy == found.accuracy == 3 / 7
    rows = found.rows()
    assert [row.attack for row in rows] == ["natural", "pgd-10", "noise-3", "all"]
    assert (rows[-1].low, rows[-1].high) == wilson(3, 7)
    assert rows[-1].passes == found["pgd-10"].passes
    assert "all               42.86   15.82 - 74.95" in str(found)
    with refused("attack-not-run", attack="square"):
        found["square"]
    with refused("no-attack"):
        evaluate(Threshold(), on_a_line(), attacks=",", eps=0.25)


def test_own_attacks() -> None:
    """An attack object, and a function such as another library's."""
    own: dict[str, Any] = {"mine": PGD(eps=0.25, steps=3), "grey": lambda x, _y: x + (0.5 - x).clamp(-0.25, 0.25)}
    found = evaluate(Threshold(), on_a_line(), attacks=own, eps=0.25)
    assert found["mine"].broken.tolist() == [False, False, True, True, True, True, False]
    assert found["grey"].forwards == 7
    faults: list[tuple[Any, str]] = [
        (lambda x, _y: x + 0.3, "points-outside-ball"),
        (lambda x, _y: x * float("nan"), "points-not-finite"),
        (lambda x, _y: x - 0.2, "points-outside-bounds"),
        (lambda x, _y: x[:2], "points-shape"),
        (lambda _x, _y: None, "points-shape"),
        (lambda x, _y: 1e4 + x, "points-outside-ball"),
        (3, "attack-type"),
    ]
    with refused("attack-ball", name="mine"):
        evaluate(Threshold(), on_a_line(), attacks={"mine": PGD(eps=0.1)}, eps=0.25)
    for wrong, code in faults:
        with refused(code):
            evaluate(Threshold(), on_a_line(), attacks={"wrong": wrong}, eps=0.25)


def test_a_subset_is_drawn_by_class() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = evaluate(model, digits(700), attacks="natural", eps=0.1, samples=np.int64(70))  # type: ignore[arg-type]
    assert len(found.broken) == 70
    assert "all samples" in [check.name for check in found.warnings]
    with refused("samples-range", samples=701):
        evaluate(model, digits(700), attacks="natural", eps=0.1, samples=701)


def test_an_attack_cannot_change_the_labels_of_others() -> None:
    def swap(x: Tensor, y: Tensor) -> Tensor:
        y.sub_(1).abs_()
        return x

    found = evaluate(Threshold(), on_a_line(), attacks={"natural": Natural(), "swap": swap}, eps=0.25)
    assert torch.equal(found["swap"].broken, found["natural"].broken)


def test_natural_errors_are_broken_by_every_attack() -> None:
    """Right everywhere near, wrong at the samples alone."""

    class Hole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            near = (x - x.detach().round(decimals=1)).abs().flatten(1).amax(1, keepdim=True)
            return torch.cat([near - 0.001, 0.001 - near], 1)

    x = torch.full((20, 4), 0.5, dtype=torch.float64)
    y = torch.zeros(20, dtype=torch.int64)
    for name in ("apgd-ce-3", "apgd-t-3", "fab-t-3", "square-3", "noise-1"):
        assert evaluate(Hole(), (x, y), attacks=name, eps=0.04, bounds=None).accuracy == 0, name


def test_natural_errors_that_an_attack_misses_count_in_all() -> None:
    """PGD starts beside the sample, and near it the model is right."""
    own: Attacks = {"natural": "natural", "away": lambda x, _y: x + (0.7 - x).clamp(-0.25, 0.25)}
    x = torch.tensor([[0.45], [0.75]])
    found = evaluate(Threshold(), (x, torch.tensor([1, 1])), attacks=own, eps=0.25)
    assert [(row.attack, row.accuracy) for row in found.rows()] == [("natural", 0.5), ("away", 1), ("all", 0.5)]
    found = evaluate(Threshold(), on_a_line(), attacks="pgd-10", eps=0.25)
    assert [row.attack for row in found.rows()] == ["pgd-10"]


class Careless(nn.Module):
    """Works in place, on what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        return torch.cat([-x, x], 1)


def test_a_model_that_changes_its_input_is_refused() -> None:
    samples = on_a_line()
    before = samples.x.clone()
    with refused("model-changes-input"):
        evaluate(Careless(), samples, attacks="natural", eps=0.1)
    assert torch.equal(samples.x, before)


def test_labels_of_any_whole_type() -> None:
    samples = on_a_line()
    for kind in (torch.uint8, torch.uint16, torch.int32, torch.float64):
        found = evaluate(Threshold(), (samples.x, samples.y.to(kind)), attacks="pgd-2", eps=0.25)
        assert found.accuracy == 3 / 7
    assert bool(PGD(eps=0.25).run(Threshold(), samples.x, samples.y.to(torch.uint16)).broken.any())
    with refused("no-features"):
        evaluate(Threshold(), (samples.x[:, :0], samples.y), attacks="natural", eps=0.1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_logits_in_double_precision_of_single_inputs(norm: str) -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.double()
            return torch.cat([0.5 - x, x - 0.5, 0 * x - 9, 0 * x - 10], 1)

    samples = on_a_line()
    found = evaluate(Mixed(), (samples.x.float(), samples.y), attacks="standard,pgd-3,noise-1", eps=0.25, norm=norm)
    assert found.accuracy == 3 / 7


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1), (3, 4, 4)])
def test_bounds_by_channel(shape: tuple[int, ...]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), torch.rand(60, 3, 4, 4)
    y = model(x).argmax(1)
    bounds = torch.zeros(shape), torch.full(shape, torch.inf)
    bounds[1].view(-1)[0] = 1.0  # the others are open above: their range is that of the samples
    found = evaluate(model, (x, y), attacks="natural,pgd-20,square-20", eps=0.1, bounds=bounds)
    results = {one.name: one.result for one in found.checks}
    assert (results["unit"], results["radius"]) == ("fine", "fine")
    assert 0 < found.accuracy < 1
    with pytest.raises(InputError, match=r"bounds of shape \(7,\) do not fit samples of shape \(3, 4, 4\)"):
        evaluate(model, (x, y), attacks="pgd-2", eps=0.1, bounds=(torch.zeros(7), torch.ones(7)))


def test_a_source_of_transfers_leaves_the_samples_alone() -> None:
    samples = on_a_line()
    before = samples.x.clone()
    with pytest.raises(RuntimeError):  # of its own gradient
        evaluate(Threshold(), samples, attacks={"other": Transfer(eps=0.1, source=Careless())}, eps=0.1)
    assert torch.equal(samples.x, before)
    with refused("transfer-source-type"):
        Transfer(eps=0.1, source="runs/a")  # type: ignore[arg-type]


def test_inference_mode() -> None:
    with torch.inference_mode():
        assert evaluate(Threshold(), on_a_line(), attacks="natural,square-5", eps=0.25).accuracy <= 6 / 7


def test_a_cascade_keeps_its_name_and_all_its_attacks() -> None:
    data = 0.9 * torch.eye(4), torch.arange(4)
    attacks: Any = {"natural": "natural", "one": {"first": "pgd-1"}, "both": {"standard": "standard", "square": "fgsm"}}
    found = evaluate(nn.Flatten(), data, eps=0.1, attacks=attacks)
    assert [outcome.attack for outcome in found.outcomes] == ["natural", "one", "both"]
    stages = [stage.attack for stage in found["both"].stages]
    assert stages == ["natural", "apgd-ce", "apgd-t", "fab-t", "square", "square: square"]
    assert [found["both"].stages[place].passes > 0 for place in (-2, -1)] == [False, True]


def test_a_proof_of_its_own_is_no_part_of_a_cascade() -> None:
    attacks: Any = {"both": {"proof": "certified", "pgd": "pgd-2"}}
    with refused("proof-in-cascade", name="both", stage="proof"):
        evaluate(nn.Flatten(), (torch.eye(4), torch.arange(4)), eps=0.1, attacks=attacks)
