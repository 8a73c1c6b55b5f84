"""A model that gets its input in another scale than it was trained with is told which one would fit."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sihg.robust.data.samples import as_samples
from sihg.robust.evaluation.evaluate import evaluate, robust_curve
from sihg.robust.evaluation.normalisation import check_normalisation
from sihg.robust.models.normalise import KNOWN, Normalisation, put_in_front
from sihg.store.schema import Check
from tests.robust.models.elsewhere import SHAPE, make_net, samples, state


def net(normalise: str) -> nn.Module:
    model = make_net()
    model.load_state_dict(state(normalise))
    return model.eval()


def check(model: nn.Module) -> Check:
    found = evaluate(model, samples(), eps=0.01, attacks="natural")
    (check,) = (check for check in found.checks if check.name == "normalisation")
    return check


@pytest.mark.parametrize("name", ["none", "half", "255", "imagenet"])
def test_the_right_normalisation_is_fine(name: str) -> None:
    assert check(put_in_front(Normalisation.parse(name), net(name), SHAPE)).result == "fine"


def test_a_missing_normalisation_is_named_with_its_accuracy() -> None:
    found = check(net("255"))
    assert found.result == "warning"
    assert (
        "is 10.0%, with the normalisation 255 it would be 100.0%, on 100 samples: give --normalise 255" in found.message
    )


def test_a_wrong_normalisation_in_front_is_replaced() -> None:
    model = put_in_front(Normalisation.parse("255"), net("none"), SHAPE)
    assert "with the normalisation none it would be 100.0%" in check(model).message
    model = put_in_front(Normalisation.parse("half"), net("255"), SHAPE)
    assert "with the normalisation 255 it would be 100.0%" in check(model).message


def test_of_those_that_fit_alike_that_of_the_data_comes_first() -> None:
    for name in ("imagenet", "svhn"):
        found = check_normalisation(net("imagenet"), replace(as_samples(samples()), name=name), 0)
        assert f"with the normalisation {name} it would be 100.0% (" in found.message


def test_a_curve_has_the_check() -> None:
    found = robust_curve(net("255"), samples(), radii=[0, 0.01], attacks="fgsm")
    assert "normalisation" in [check.name for check in found.warnings]


def test_a_bad_model_that_no_normalisation_helps_is_left_to_other_checks() -> None:
    model = make_net().eval()
    nn.init.zeros_(model.head.weight)  # type: ignore[union-attr, arg-type]
    assert check_normalisation(model, as_samples(samples()), 0).result == "fine"


@pytest.mark.parametrize("rows", [slice(0, 49), slice(0, 100, 10)])
def test_few_samples_or_one_class_are_not_tried(rows: slice) -> None:
    x, y = samples()
    assert check_normalisation(net("255"), as_samples((x[rows], y[rows])), 0).result == "not run"
    flat = as_samples((x.flatten(1), y))
    assert check_normalisation(nn.Linear(48, 10), flat, 0).result == "not run"


def test_good_models_take_one_pass_more() -> None:
    passes = []
    model = net("none")
    model.register_forward_hook(lambda *_: passes.append(1))
    check_normalisation(model, as_samples(samples()), 0)
    assert len(passes) == 1


def test_names_and_numbers() -> None:
    for name in KNOWN:
        assert str(Normalisation.parse(name)) == name
    numbers = Normalisation.parse("0.1, 0.2,0.3/0.4,0.5,0.6")
    assert (numbers.mean, numbers.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    x = torch.rand(2, *SHAPE)
    layer = put_in_front(numbers, nn.Identity(), SHAPE)
    expected = (x - torch.tensor(numbers.mean).view(3, 1, 1)) / torch.tensor(numbers.std).view(3, 1, 1)
    assert torch.equal(layer(x), expected)
    assert torch.equal(put_in_front(Normalisation.parse("255"), nn.Identity(), SHAPE)(x), x / torch.tensor(1 / 255))
