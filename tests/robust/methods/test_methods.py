"""Methods by name, and the settings they refuse."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.robust.methods import METHODS, build_method, hyperparameters
from tests.robust.methods.nets import net, one_batch, sgd, weights


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ibp"])  # which is for linf, without such layers
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_method_trains_any_norm_without_bounds_and_repeats(name: str, norm: str, dtype: torch.dtype) -> None:
    settings: dict[str, Any] = {} if name == "natural" else {"eps": 0.1, "norm": norm, "bounds": None}
    batch, results = one_batch(dtype=dtype), []
    for _ in range(2):
        model = net("bn", dtype=dtype)
        log = build_method(name, **settings).step(model, batch, sgd(model))
        results.append(weights(model))
        assert model.training
        assert all(m.training for m in model.modules())
        assert log.samples == len(batch.x)
        assert log.loss > 0
        assert 0 <= log.accuracy <= 1
        assert int(log.predicted.sum()) == log.samples
    assert torch.equal(*results)
    assert not torch.equal(results[0], weights(net("bn", dtype=dtype)))


@pytest.mark.parametrize("name", METHODS)
def test_every_hyperparameter_has_a_default_and_a_help_text(name: str) -> None:
    known = hyperparameters(name)
    assert "memory" not in known
    assert "delta" not in known
    assert all(about for _, about in known.values())
    method = build_method(name, **({"eps": 0.1} if known else {}))
    assert {f.name for f in fields(method)} >= known.keys()
    assert all(getattr(method, key) == default for key, (default, _) in known.items() if key != "eps")


def test_the_ball_of_tables() -> None:
    """Every method takes samples that are no images."""
    for name in METHODS:
        model, batch = net("table"), one_batch(12, (6,))
        build_method(name, **({} if name == "natural" else {"eps": 0.1})).step(model, batch, sgd(model))
        assert not torch.equal(weights(model), weights(net("table")))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pgd", {}, "method 'pgd' needs eps, the radius of the ball: such as 8/255"),
        ("pgd", {"eps": 0.1, "tau": 0.1}, "method 'pgd' has no setting 'tau': it has eps, norm, bounds, ramp, steps"),
        ("pgd", {"eps": 0.1, "memory": None}, "method 'pgd' has no setting 'memory'"),
        ("natural", {"eps": 0.1}, "method 'natural' has no setting 'eps': it has none"),
        ("pgd", {"eps": -1.0}, "eps must be finite and >= 0, got -1.0: "),
        ("pgd", {"eps": 0.1, "steps": 0}, "steps must be a whole number >= 1, got 0: leave it out for the default"),
        ("pgd", {"eps": 0.1, "steps": 2.0}, "steps must be a whole number >= 1, got 2.0: "),
        ("pgd", {"eps": 0.1, "steps": True}, "got True: "),
        ("pgd", {"eps": 0.1, "step_size": 0.0}, "step_size must be finite and > 0, got 0.0: leave it out"),
        ("pgd", {"eps": 0.1, "ramp": -1.0}, "ramp must be a number of epochs >= 0, got -1.0: 0 for none"),
        ("pgd", {"eps": 0.1, "statistics": "x"}, "unknown statistics 'x': choose from batch, running"),
        ("msi-hg", {"eps": 0.1, "statistics": "x"}, "unknown statistics 'x': choose from batch, running"),
        ("fast", {"eps": 0.1, "alpha": float("nan")}, "alpha must be finite and > 0, got nan: "),
        ("free", {"eps": 0.1, "replays": 0}, "replays must be a whole number >= 1, got 0: "),
        ("dat", {"eps": 0.1, "fosc_max": float("nan")}, "fosc_max must be finite and >= 0, got nan: "),
        ("dat", {"eps": 0.1, "control_epochs": 0}, "control_epochs must be finite and > 0, got 0: "),
        ("dat", {"eps": 0.1, "fosc": "x"}, "unknown fosc 'x': choose from bounded, published"),
        ("yopo", {"eps": 0.1, "outer": 0}, "outer must be a whole number >= 1, got 0: "),
        ("yopo", {"eps": 0.1, "inner": -1}, "inner must be a whole number >= 0, got -1: "),
        ("yopo", {"eps": 0.1, "stem_gradient": "x"}, "unknown stem_gradient 'x': choose from hamiltonian, both"),
        ("trades", {"eps": 0.1, "beta": -1.0}, "beta must be finite and >= 0, got -1.0: "),
        ("msi-hg", {"eps": 0.0}, "MSI-HG needs a ball to search, got eps 0: train with `natural`, or give eps"),
        ("msi-hg", {"eps": 0.1, "tau": 0.0}, "tau must be finite and > 0, got 0.0: "),
        ("msi-hg", {"eps": 0.1, "noise": -0.1}, "noise must be finite and >= 0, got -0.1: leave it out for tau"),
        ("msi-hg", {"eps": 0.1, "reset": -1}, "reset must be a whole number >= 0, got -1: "),
        ("msi-hg", {"eps": 0.1, "implicit": "x"}, "unknown implicit 'x': choose from sign, proximal"),
        (
            "msi-hg",
            {"eps": 0.1, "augment_delta": "x"},
            "unknown augment_delta 'x': choose from same, independent, none",
        ),
    ],
)
def test_settings_that_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_method(name, **settings)
    assert str(caught.value).startswith(message) or (message.startswith("got") and message in str(caught.value))


def test_an_unknown_method() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown method 'msihg' .*: choose from natural, fgsm, fast, free, pgd, dat"
    ):
        build_method("msihg")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "msi-hg"])  # whose memory refuses it before
def test_an_image_that_is_not_finite_never_reaches_the_weights(name: str) -> None:
    model, batch = net("plain"), one_batch()
    batch.x[3, 0, 2, 2] = torch.nan
    with pytest.raises(NotFiniteError, match="row 3 of the batch has a value that is not finite: clean the data"):
        build_method(name, **({} if name == "natural" else {"eps": 0.1})).step(model, batch, sgd(model))
    assert torch.equal(weights(model), weights(net("plain")))
